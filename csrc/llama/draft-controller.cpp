// See draft-controller.h.
#include "draft-controller.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace {

constexpr double KEEP_ACCEPTANCE = 0.97; // of earlier drafts, with each round
constexpr double KEEP_IDLE = 0.998;      // of earlier drafts, with each plain step
constexpr double PRIOR = 1.0;            // weight of what is believed of a position before it was seen
constexpr double FIRST_ACCEPTANCE = 0.7;
constexpr double LATER_ACCEPTANCE = 0.97; // of the position before, where nothing is known yet
constexpr double MARGIN = 1.01;           // drafting must be better by that
constexpr double FREE_STEPS = 3.0;        // plain steps' worth of time that may be lost at the start
constexpr double LOSS_SHARE = 0.006;      // of all time that may be lost to learn
constexpr int32_t PLAIN_FIRST = 3;
constexpr double AHEAD_COST = 0.6;   // of a preview, for its rows in another pass; not known
constexpr uint64_t AHEAD_TRIES = 3;  // rounds, before it is believed what they say
constexpr uint64_t AHEAD_EVERY = 64; // rounds, at most, between two tries of it where it does not pay
constexpr uint64_t WAY_TRIES = 4;    // rounds, before it is believed what they say
constexpr uint64_t WAY_EVERY = 256;  // rounds, at most, between two tries of a way that was not the best
constexpr double WAY_SHARE = 0.01;   // of all time that may be lost to learn about other ways
constexpr double WAY_COST[DRAFT_WAYS] = { 1.0, 1.15, 2.0, 0.85 }; // previews', against those as asked; not known
constexpr uint64_t PLAIN_EVERY = 40;                              // rounds, then a plain step is measured again
constexpr uint64_t PROBE_EVERY = 12;                              // steps, at least, between two probes

} // namespace

void recent_median::add(double x) {
    last[next] = x;
    next = (next + 1) % N;
    n = std::min(n + 1, N);
    std::array<double, N> sorted = last;
    const auto middle = sorted.begin() + (n - 1) / 2; // of two, the smaller: delays only add
    std::nth_element(sorted.begin(), middle, sorted.begin() + n);
    value = *middle;
    known = true;
}

draft_controller::draft_controller(int32_t n_max, bool start_plain)
    : n_max(std::clamp(n_max, 1, DRAFT_N_MAX)), start_plain(start_plain) {
}

// The number of tokens closest to n of which something is known; 0: there is none.
static int32_t nearest(const std::array<recent_median, DRAFT_N_MAX + 1> & seen, int32_t n) {
    int32_t best = 0;
    for (int32_t i = 1; i <= DRAFT_N_MAX; i++) {
        if (seen[i].known && (best == 0 || std::abs(i - n) < std::abs(best - n))) {
            best = i;
        }
    }
    return best;
}

// By tokens drafted: what was seen, between what was seen, or beyond it with the slope before.
static double interpolated(const std::array<recent_median, DRAFT_N_MAX + 1> & seen, int32_t n, double at_zero, double slope) {
    int32_t low = 0;
    double low_value = at_zero;
    int32_t before_low = -1;
    double before_value = 0.0;
    for (int32_t i = 1; i <= DRAFT_N_MAX; i++) {
        if (!seen[i].known) {
            continue;
        }
        const double value = std::max(seen[i].value, 1e-12);
        if (i == n) {
            return value;
        }
        if (i > n) {
            const double share = double(n - low) / double(i - low);
            return low_value + share * (value - low_value);
        }
        before_low = low;
        before_value = low_value;
        low = i;
        low_value = value;
    }
    if (before_low >= 0 && low > before_low) {
        slope = std::max(0.0, (low_value - before_value) / double(low - before_low));
    }
    return low_value + slope * double(n - low);
}

bool draft_controller::possible(draft_way way, int32_t n) const {
    switch (way) {
    case DRAFT_FULL_BLOCK:
        return n + 1 < may.full_rows;
    case DRAFT_TWO_STEPS:
        return may.two_steps && n >= 2;
    case DRAFT_FEW_EXPERTS:
        return may.few_experts;
    default:
        return true;
    }
}

double draft_controller::preview_s(draft_way way, int32_t n) const {
    const auto & seen = ways[way].preview;
    if (way == DRAFT_AS_ASKED) {
        // not known at all: a little more than a plain step, and nearly the same for any number of rows
        return interpolated(seen, n, plain.value * 1.1, plain.value * 0.02);
    }
    // as much more as where it is known
    const double asked = preview_s(DRAFT_AS_ASKED, n);
    const int32_t near = nearest(seen, n);
    return near == 0 ? asked * WAY_COST[way] : asked * seen[near].value / std::max(preview_s(DRAFT_AS_ASKED, near), 1e-12);
}

double draft_controller::verify_s(int32_t n) const {
    return interpolated(verify, n, plain.value, plain.value * 0.08);
}

double draft_controller::acceptance_of(draft_way way, int32_t i, double before, double optimism) const {
    const position & p = ways[way].at[i];
    double belief = i == 1 ? FIRST_ACCEPTANCE : before * LATER_ACCEPTANCE;
    if (way != DRAFT_AS_ASKED) { // no worse than the usual, until something else is known
        const position & usual = ways[DRAFT_AS_ASKED].at[i];
        belief = (usual.accepted + PRIOR * belief) / (usual.accepted + usual.rejected + PRIOR);
    }
    const double weight = p.accepted + p.rejected + PRIOR;
    const double mean = (p.accepted + PRIOR * belief) / weight;
    return std::clamp(mean + optimism * std::sqrt(mean * (1.0 - mean) / weight), 0.0, 1.0);
}

double draft_controller::acceptance(int32_t i) const {
    const draft_way way = best_way();
    double a = 0.0;
    for (int32_t k = 1; k <= i; k++) {
        a = acceptance_of(way, k, a, 0.0);
    }
    return a;
}

draft_controller::outlook draft_controller::outlook_of(draft_way way, int32_t n, double optimism) const {
    outlook out = { 1.0, 1.0 };
    double a = 0.0;
    for (int32_t i = 1; i <= n; i++) {
        a = acceptance_of(way, i, a, optimism);
        out.whole *= a;
        out.tokens += out.whole;
    }
    return out;
}

// Not known at this length: as much more than a check alone as where it is known, and else a part of a preview more.
double draft_controller::ahead_s(int32_t n) const {
    if (verify_ahead[n].known) {
        return verify_ahead[n].value;
    }
    const int32_t near = nearest(verify_ahead, n);
    const double more =
        near > 0 ? std::max(0.0, verify_ahead[near].value - verify_s(near)) / std::max(preview_s(DRAFT_AS_ASKED, near), 1e-12)
                 : AHEAD_COST;
    return verify_s(n) + more * preview_s(DRAFT_AS_ASKED, n);
}

double draft_controller::rate_ahead(int32_t n, const outlook & round, double optimism) const {
    const double weight = used_ahead.accepted + used_ahead.rejected + PRIOR;
    const double mean = (used_ahead.accepted + PRIOR * FIRST_ACCEPTANCE) / weight;
    const double used = std::clamp(mean + optimism * std::sqrt(mean * (1.0 - mean) / weight), 0.0, 1.0);
    const double seconds =
        ahead_s(n) + (1.0 - round.whole * used) * preview_s(DRAFT_AS_ASKED, n) + (1.0 - round.whole) * rollback.value;
    return seconds > 0.0 ? round.tokens / seconds : 0.0;
}

double draft_controller::rate(draft_way way, int32_t n, const outlook & round, double optimism) const {
    const double seconds = preview_s(way, n) + verify_s(n) + (1.0 - round.whole) * rollback.value;
    const double two = seconds > 0.0 ? round.tokens / seconds : 0.0;
    return way == DRAFT_AS_ASKED && may.ahead && n_ahead >= AHEAD_TRIES ? std::max(two, rate_ahead(n, round, optimism)) : two;
}

double draft_controller::rate_of(draft_way way, int32_t n, double optimism) const {
    return rate(way, n, outlook_of(way, n, optimism), optimism);
}

double draft_controller::rate_plain() const {
    return plain.value > 0.0 ? 1.0 / plain.value : 0.0;
}

double draft_controller::tokens_per_s(int32_t n) const {
    return n == 0 ? rate_plain() : rate_of(best_way(), n, 0.0);
}

draft_controller::plan draft_controller::best_of(draft_way way, double optimism) const {
    plan best = { way, 0, 0.0 };
    outlook round = { 1.0, 1.0 };
    double a = 0.0;
    for (int32_t n = 1; n <= n_max; n++) {
        a = acceptance_of(way, n, a, optimism);
        round.whole *= a;
        round.tokens += round.whole;
        if (!possible(way, n)) {
            continue;
        }
        const double now = rate(way, n, round, optimism);
        if (best.n == 0 || now > best.rate) {
            best.n = n;
            best.rate = now;
        }
    }
    return best;
}

draft_controller::plan draft_controller::best_choice(double optimism) const {
    plan best = best_of(DRAFT_AS_ASKED, optimism);
    for (int32_t way = DRAFT_AS_ASKED + 1; way < DRAFT_WAYS; way++) {
        if (optimism == 0.0 && ways[way].n_rounds < WAY_TRIES) {
            continue;
        }
        const plan other = best_of((draft_way) way, optimism);
        if (other.n > 0 && other.rate > best.rate * MARGIN) {
            best = other;
        }
    }
    return best;
}

int32_t draft_controller::best() const {
    const plan now = best_choice(0.0);
    return now.rate > rate_plain() * MARGIN ? now.n : 0;
}

// Whether the next draft should be made in the pass that checks one of n tokens.
bool draft_controller::wants_ahead(int32_t n) {
    const auto with = [&](double optimism) {
        return rate_ahead(n, outlook_of(DRAFT_AS_ASKED, n, optimism), optimism);
    };
    const outlook round = outlook_of(DRAFT_AS_ASKED, n, 0.0);
    const double seconds = preview_s(DRAFT_AS_ASKED, n) + verify_s(n) + (1.0 - round.whole) * rollback.value;
    const double without = seconds > 0.0 ? round.tokens / seconds : 0.0;
    if (n_ahead >= AHEAD_TRIES && with(0.0) > without) {
        since_ahead = 0;
        return true;
    }
    const bool tries = n_ahead < AHEAD_TRIES ? n_rounds >= 4 : ++since_ahead >= ahead_after;
    if (!tries || with(1.0) < without || !may_lose(std::max(0.0, ahead_s(n) - verify_s(n)))) {
        return false;
    }
    if (n_ahead >= AHEAD_TRIES) {
        since_ahead = 0;
        ahead_after = std::min(2 * ahead_after, AHEAD_EVERY);
    }
    return true;
}

// Another way that may be better than the best one now; nullptr: none, or too dear to try.
const draft_controller::plan * draft_controller::other_way(const plan & now, plan & out) {
    out.n = 0;
    for (int32_t way = 0; way < DRAFT_WAYS; way++) {
        history & h = ways[way];
        if (way == now.way || (h.n_rounds == 0 ? n_rounds < 6 : h.since < h.tried_after)) {
            continue;
        }
        const plan hope = best_of((draft_way) way, 1.0);
        if (hope.n == 0 || hope.rate < now.rate * 1.02 || (out.n > 0 && hope.rate <= out.rate)) {
            continue;
        }
        const outlook round = outlook_of(hope.way, hope.n, 0.0);
        const double seconds = preview_s(hope.way, hope.n) + verify_s(hope.n) + (1.0 - round.whole) * rollback.value;
        const double loss = std::max(0.0, seconds - round.tokens / std::max(now.rate, 1e-12));
        if (lost_on_ways_s + loss <= FREE_STEPS * plain.value + WAY_SHARE * elapsed_s) {
            out = hope;
        }
    }
    if (out.n == 0) {
        return nullptr;
    }
    history & h = ways[out.way];
    if (h.n_rounds >= WAY_TRIES) {
        h.tried_after = std::min(2 * h.tried_after, WAY_EVERY);
    }
    return &out;
}

bool draft_controller::may_lose(double seconds) const {
    return lost_s + seconds <= FREE_STEPS * plain.value + LOSS_SHARE * elapsed_s;
}

draft_choice draft_controller::choose(uint64_t n_left, const draft_may & may_now) {
    turn++;
    may = may_now;
    rate_before = 0.0;
    const auto limit = [&](int32_t n) {
        return n_left > 0 ? (int32_t) std::min<uint64_t>((uint64_t) n, n_left - 1) : n;
    };
    const auto decide = [&](int32_t n, bool is_probe, draft_way way = DRAFT_AS_ASKED) {
        const int32_t n_now = limit(n);
        if (!possible(way, n_now)) {
            way = DRAFT_AS_ASKED;
        }
        // a draft that is cut short is the last one
        const bool ahead = may.ahead && way == DRAFT_AS_ASKED && !is_probe && n_now > 0 && n_now == n && wants_ahead(n);
        last = { n_now, is_probe, ahead, way };
        n_probes += is_probe;
        since_probe = is_probe ? 0 : since_probe + 1;
        return last;
    };
    if (!plain.known) {
        if (start_plain || n_rounds >= 1) {
            return decide(0, true);
        }
        return decide(n_max, false); // it was asked for
    }
    if (start_plain && n_plain < PLAIN_FIRST) {
        return decide(0, true);
    }
    const plan now = best_choice(0.0);
    // time that a round is expected to take beyond plain steps
    const auto loss_of = [&](draft_way way, int32_t n) {
        const auto round = outlook_of(way, n, 0.0);
        const double seconds = preview_s(way, n) + verify_s(n) + (1.0 - round.whole) * rollback.value;
        return std::max(0.0, seconds - round.tokens * plain.value);
    };
    if (now.rate > rate_plain() * MARGIN) {
        if (since_plain >= plain_after) {
            plain_after = std::min(plain_after * 2, PLAIN_EVERY);
            return decide(0, true);
        }
        // another length or another way that may be better, in turns
        if (n_rounds > 2 && since_probe >= PROBE_EVERY) {
            plan other;
            if (++way_turn % 2 == 1 && other_way(now, other) != nullptr) {
                rate_before = now.rate;
                return decide(other.n, true, other.way);
            }
            const plan longer = best_of(now.way, 1.0);
            if (longer.n != now.n && longer.rate > now.rate * 1.02 && may_lose(loss_of(now.way, longer.n))) {
                return decide(longer.n, true, now.way);
            }
            const int32_t step = (turn & 1) != 0 ? std::min(now.n + 1 + now.n / 4, n_max) : std::max(now.n - 1 - now.n / 4, 1);
            if (step != now.n && possible(now.way, step) && rate_of(now.way, step, 1.0) > now.rate * 1.01 &&
                may_lose(loss_of(now.way, step))) {
                return decide(step, true, now.way);
            }
        }
        return decide(now.n, false, now.way);
    }
    const plan usual = best_of(DRAFT_AS_ASKED, 1.5);
    const plan hope = usual.rate > rate_plain() * MARGIN ? usual : best_choice(1.5);
    const double expected = outlook_of(hope.way, hope.n, 0.0).tokens;
    const double loss = preview_s(hope.way, hope.n) + verify_s(hope.n) + rollback.value - expected * plain.value;
    if (since_probe >= PROBE_EVERY && hope.rate > rate_plain() * MARGIN && may_lose(std::max(loss, 0.0))) {
        return decide(hope.n, true, hope.way);
    }
    return decide(0, false);
}

void draft_controller::spent(double seconds, double tokens, bool was_probe) {
    elapsed_s += seconds;
    if (plain.known) {
        const double loss = seconds - tokens * plain.value;
        // what was won pays back a little, so that one loss is not held against it for ever
        lost_s = std::max(0.0, lost_s + (loss > 0.0 || was_probe ? loss : 0.25 * loss));
    }
}

template <typename T> static void fade(T & positions, double keep) {
    for (auto & p : positions) {
        p.accepted *= keep;
        p.rejected *= keep;
    }
}

void draft_controller::saw_plain(double seconds) {
    plain.add(seconds);
    n_plain++;
    since_plain = 0;
    elapsed_s += seconds;
    for (history & way : ways) {
        fade(way.at, KEEP_IDLE);
    }
}

void draft_controller::saw_round(int32_t n_drafted, int32_t n_checked, int32_t n_accepted, double preview_seconds,
                                 double verify_seconds, bool ahead, bool used) {
    n_drafted = std::clamp(n_drafted, 1, DRAFT_N_MAX);
    history & way = ways[last.way];
    if (preview_seconds > 0.0) {
        way.preview[n_drafted].add(preview_seconds);
    }
    if (ahead) {
        n_ahead++;
        verify_ahead[n_drafted].add(verify_seconds);
        used_ahead.accepted *= KEEP_ACCEPTANCE;
        used_ahead.rejected *= KEEP_ACCEPTANCE;
        if (n_accepted >= n_drafted) {
            (used ? used_ahead.accepted : used_ahead.rejected) += 1.0;
        }
    } else {
        verify[n_drafted].add(verify_seconds);
    }
    for (history & other : ways) {
        fade(other.at, &other == &way ? KEEP_ACCEPTANCE : KEEP_IDLE);
        other.since++;
    }
    way.n_rounds++;
    way.since = 0;
    for (int32_t i = 1; i <= std::min(n_checked, n_drafted); i++) {
        if (i <= n_accepted) {
            way.at[i].accepted += 1.0;
        } else {
            way.at[i].rejected += 1.0; // those behind it were not tried
            break;
        }
    }
    if (rate_before > 0.0) {
        lost_on_ways_s += preview_seconds + verify_seconds - (1.0 + n_accepted) / rate_before;
    }
    n_rounds++;
    since_plain++;
    spent(preview_seconds + verify_seconds, 1.0 + n_accepted, last.is_probe);
}

void draft_controller::saw_rollback(double seconds) {
    rollback.add(seconds);
    spent(seconds, 0.0, last.is_probe);
}
