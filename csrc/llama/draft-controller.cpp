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
constexpr double LOSS_SHARE = 0.009;      // of all time that may be lost to learn
constexpr int32_t PLAIN_FIRST = 3;
constexpr double AHEAD_COST = 0.6;   // of a preview, for its rows in another pass; not known
constexpr uint64_t AHEAD_TRIES = 3;  // rounds, before it is believed what they say
constexpr uint64_t AHEAD_EVERY = 64; // rounds, at most, between two tries of it where it does not pay
constexpr uint64_t PLAIN_EVERY = 40; // rounds, then a plain step is measured again
constexpr uint64_t PROBE_EVERY = 12; // steps, at least, between two probes

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

double draft_controller::preview_s(int32_t n) const {
    // not known at all: a little more than a plain step, and nearly the same for any number of rows
    return interpolated(preview, n, plain.value * 1.1, plain.value * 0.02);
}

double draft_controller::verify_s(int32_t n) const {
    return interpolated(verify, n, plain.value, plain.value * 0.08);
}

double draft_controller::acceptance_of(int32_t i, double before, double optimism) const {
    const position & p = at[i];
    const double belief = i == 1 ? FIRST_ACCEPTANCE : before * LATER_ACCEPTANCE;
    const double weight = p.accepted + p.rejected + PRIOR;
    const double mean = (p.accepted + PRIOR * belief) / weight;
    return std::clamp(mean + optimism * std::sqrt(mean * (1.0 - mean) / weight), 0.0, 1.0);
}

double draft_controller::acceptance(int32_t i) const {
    double a = 0.0;
    for (int32_t k = 1; k <= i; k++) {
        a = acceptance_of(k, a, 0.0);
    }
    return a;
}

draft_controller::outlook draft_controller::outlook_of(int32_t n, double optimism) const {
    outlook out = { 1.0, 1.0 };
    double a = 0.0;
    for (int32_t i = 1; i <= n; i++) {
        a = acceptance_of(i, a, optimism);
        out.whole *= a;
        out.tokens += out.whole;
    }
    return out;
}

double draft_controller::expected_tokens(int32_t n) const {
    return outlook_of(n, 0.0).tokens;
}

// Not known at this length: as much more than a check alone as where it is known, and else a part of a preview more.
double draft_controller::ahead_s(int32_t n) const {
    if (verify_ahead[n].known) {
        return verify_ahead[n].value;
    }
    int32_t nearest = 0;
    for (int32_t i = 1; i <= DRAFT_N_MAX; i++) {
        if (verify_ahead[i].known && (nearest == 0 || std::abs(i - n) < std::abs(nearest - n))) {
            nearest = i;
        }
    }
    const double more = nearest > 0
                            ? std::max(0.0, verify_ahead[nearest].value - verify_s(nearest)) / std::max(preview_s(nearest), 1e-12)
                            : AHEAD_COST;
    return verify_s(n) + more * preview_s(n);
}

double draft_controller::rate_ahead(int32_t n, double optimism) const {
    const outlook round = outlook_of(n, optimism);
    const double weight = used_ahead.accepted + used_ahead.rejected + PRIOR;
    const double mean = (used_ahead.accepted + PRIOR * FIRST_ACCEPTANCE) / weight;
    const double used = std::clamp(mean + optimism * std::sqrt(mean * (1.0 - mean) / weight), 0.0, 1.0);
    const double seconds = ahead_s(n) + (1.0 - round.whole * used) * preview_s(n) + (1.0 - round.whole) * rollback.value;
    return seconds > 0.0 ? round.tokens / seconds : 0.0;
}

double draft_controller::rate(int32_t n, double optimism) const {
    const double two = rate_two(n, optimism);
    return n > 0 && may_ahead && n_ahead >= AHEAD_TRIES ? std::max(two, rate_ahead(n, optimism)) : two;
}

double draft_controller::rate_two(int32_t n, double optimism) const {
    if (n == 0) {
        return plain.value > 0.0 ? 1.0 / plain.value : 0.0;
    }
    const outlook round = outlook_of(n, optimism);
    const double seconds = preview_s(n) + verify_s(n) + (1.0 - round.whole) * rollback.value;
    return seconds > 0.0 ? round.tokens / seconds : 0.0;
}

double draft_controller::tokens_per_s(int32_t n) const {
    return rate(n, 0.0);
}

int32_t draft_controller::best_n(double optimism) const {
    int32_t best = 1;
    for (int32_t n = 2; n <= n_max; n++) {
        if (rate(n, optimism) > rate(best, optimism)) {
            best = n;
        }
    }
    return best;
}

int32_t draft_controller::best() const {
    const int32_t n = best_n(0.0);
    return rate(n, 0.0) > rate(0, 0.0) * MARGIN ? n : 0;
}

// Whether the next draft should be made in the pass that checks one of n tokens.
bool draft_controller::wants_ahead(int32_t n) {
    if (n_ahead >= AHEAD_TRIES && rate_ahead(n, 0.0) > rate_two(n, 0.0)) {
        since_ahead = 0;
        return true;
    }
    const bool tries = n_ahead < AHEAD_TRIES ? n_rounds >= 4 : ++since_ahead >= ahead_after;
    if (!tries || rate_ahead(n, 1.0) < rate_two(n, 0.0) || !may_lose(std::max(0.0, ahead_s(n) - verify_s(n)))) {
        return false;
    }
    if (n_ahead >= AHEAD_TRIES) {
        since_ahead = 0;
        ahead_after = std::min(2 * ahead_after, AHEAD_EVERY);
    }
    return true;
}

bool draft_controller::may_lose(double seconds) const {
    return lost_s + seconds <= FREE_STEPS * plain.value + LOSS_SHARE * elapsed_s;
}

draft_choice draft_controller::choose(uint64_t n_left, bool may_ahead_now) {
    turn++;
    may_ahead = may_ahead_now;
    const auto limit = [&](int32_t n) {
        return n_left > 0 ? (int32_t) std::min<uint64_t>((uint64_t) n, n_left - 1) : n;
    };
    const auto decide = [&](int32_t n, bool is_probe) {
        const int32_t n_now = limit(n);
        // a draft that is cut short is the last one
        last = { n_now, is_probe, may_ahead && !is_probe && n_now > 0 && n_now == n && wants_ahead(n) };
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
    const int32_t n = best_n(0.0);
    const bool pays = rate(n, 0.0) > rate(0, 0.0) * MARGIN;
    if (pays) {
        if (since_plain >= plain_after) {
            plain_after = std::min(plain_after * 2, PLAIN_EVERY);
            return decide(0, true);
        }
        // another length that may be better
        if (n_rounds > 2 && since_probe >= PROBE_EVERY) {
            const int32_t other = best_n(1.0);
            const double gain = rate(other, 1.0) / rate(n, 0.0);
            if (other != n && gain > 1.02) {
                return decide(other, true);
            }
            const int32_t step = (turn & 1) != 0 ? std::min(n + 1 + n / 4, n_max) : std::max(n - 1 - n / 4, 1);
            if (step != n && rate(step, 1.0) > rate(n, 0.0) * 1.01) {
                return decide(step, true);
            }
        }
        return decide(n, false);
    }
    const int32_t hope = best_n(1.5);
    const double loss = preview_s(hope) + verify_s(hope) + rollback.value - expected_tokens(hope) * plain.value;
    if (since_probe >= PROBE_EVERY && rate(hope, 1.5) > rate(0, 0.0) * MARGIN && may_lose(std::max(loss, 0.0))) {
        return decide(hope, true);
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

void draft_controller::saw_plain(double seconds) {
    plain.add(seconds);
    n_plain++;
    since_plain = 0;
    elapsed_s += seconds;
    for (position & p : at) {
        p.accepted *= KEEP_IDLE;
        p.rejected *= KEEP_IDLE;
    }
}

void draft_controller::saw_round(int32_t n_drafted, int32_t n_checked, int32_t n_accepted, double preview_seconds,
                                 double verify_seconds, bool ahead, bool used) {
    n_drafted = std::clamp(n_drafted, 1, DRAFT_N_MAX);
    if (preview_seconds > 0.0) {
        preview[n_drafted].add(preview_seconds);
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
    for (position & p : at) {
        p.accepted *= KEEP_ACCEPTANCE;
        p.rejected *= KEEP_ACCEPTANCE;
    }
    for (int32_t i = 1; i <= std::min(n_checked, n_drafted); i++) {
        if (i <= n_accepted) {
            at[i].accepted += 1.0;
        } else {
            at[i].rejected += 1.0; // those behind it were not tried
            break;
        }
    }
    n_rounds++;
    since_plain++;
    spent(preview_seconds + verify_seconds, 1.0 + n_accepted, last.is_probe);
}

void draft_controller::saw_rollback(double seconds) {
    rollback.add(seconds);
    spent(seconds, 0.0, last.is_probe);
}
