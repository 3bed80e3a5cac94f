// Decides before each step whether to draft, and how many tokens, from what steps have cost and drafts have brought here.
//
// Expected tokens of a round with n drafted: E(n) = 1 + a1 + a1 a2 + ... + a1..an, with ai the probability that the i-th is
// accepted when those before it are. Its cost: preview, verify of n + 1 rows, and when a token is rejected (probability
// 1 - a1..an) the way back. Drafting pays when E(n) / cost(n) is more than one token per plain step.
#pragma once

#include <array>
#include <cstdint>

constexpr int32_t DRAFT_N_MAX = 31;

// The median of the last observations: it follows a change after a few, and one delay of the machine does not move it.
class recent_median {
  public:
    void add(double x);

    double value = 0.0;
    bool known = false;

  private:
    static constexpr int32_t N = 9;
    std::array<double, N> last = {};
    int32_t n = 0;
    int32_t next = 0;
};

// How a draft is made.
enum draft_way {
    DRAFT_AS_ASKED,    // as the parameters say
    DRAFT_FULL_BLOCK,  // from a block of more rows than it has tokens
    DRAFT_TWO_STEPS,   // in two block passes
    DRAFT_FEW_EXPERTS, // by the block's most wanted experts alone
    DRAFT_WAYS,
};

// What is possible, and what therefore may be chosen.
struct draft_may {
    bool ahead = false;    // drafts can be made ahead
    int32_t full_rows = 0; // rows of a full block; 0: not possible
    bool two_steps = false;
    bool few_experts = false;
};

struct draft_choice {
    int32_t n;     // tokens to draft; 0: a plain step
    bool is_probe; // to learn something, not because it is thought best
    bool ahead;    // make the next draft in the pass that checks this one
    draft_way way;
};

class draft_controller {
  public:
    // n_max: at most so many tokens, 1 to DRAFT_N_MAX. start_plain: draft only once it is seen to win.
    draft_controller(int32_t n_max, bool start_plain);

    // n_left: tokens that are still of use.
    draft_choice choose(uint64_t n_left, const draft_may & may = {});

    // Times in seconds, without what went into building graphs, which only a change costs. A plain step of one token:
    void saw_plain(double seconds);
    // A round, made in the way that was chosen last: tokens that were drafted (1 to n_max), how many of them were checked and
    // accepted, what it cost. preview_s: 0 for a draft that was there already. ahead: the next draft was made in the check's
    // pass; used: it can be used.
    void saw_round(int32_t n_drafted, int32_t n_checked, int32_t n_accepted, double preview_s, double verify_s,
                   bool ahead = false, bool used = false);
    // What graphs of the last step cost, and would not cost again.
    void saw_build(double seconds) { spent(seconds, 0.0, last.is_probe); }
    // The way back after a round that was not accepted whole.
    void saw_rollback(double seconds);

    // What it believes, for statistics; of drafts in the way that it thinks best.
    double plain_s() const { return plain.value; }
    double preview_s(int32_t n) const { return preview_s(best_choice(0.0).way, n); }
    double verify_s(int32_t n) const;
    double ahead_s(int32_t n) const;      // a check in whose pass the next draft is made
    double acceptance(int32_t i) const;   // of the i-th token, from 1
    double tokens_per_s(int32_t n) const; // n = 0: plain
    int32_t best() const;                 // n that it thinks best, 0: plain
    draft_way best_way() const { return best_choice(0.0).way; }

    uint64_t n_plain = 0;
    uint64_t n_rounds = 0;
    uint64_t n_probes = 0;
    uint64_t n_ahead = 0; // rounds in whose check the next draft was made
    uint64_t rounds_of(draft_way way) const { return ways[way].n_rounds; }

  private:
    struct position {
        double accepted = 0.0;
        double rejected = 0.0;
    };

    struct outlook {
        double tokens; // expected of a round
        double whole;  // probability that all of its draft is accepted
    };

    // what is known of drafts that are made in one way
    struct history {
        std::array<recent_median, DRAFT_N_MAX + 1> preview; // by tokens drafted
        std::array<position, DRAFT_N_MAX + 1> at;
        uint64_t n_rounds = 0;
        uint64_t since = 0;       // rounds of others
        uint64_t tried_after = 8; // so many of them it is tried again
    };

    struct plan {
        draft_way way;
        int32_t n;
        double rate; // tokens per second
    };

    bool possible(draft_way way, int32_t n) const;
    double preview_s(draft_way way, int32_t n) const;
    outlook outlook_of(draft_way way, int32_t n, double optimism) const;
    double acceptance_of(draft_way way, int32_t i, double before, double optimism) const;
    double rate(draft_way way, int32_t n, const outlook & round, double optimism) const;
    double rate_of(draft_way way, int32_t n, double optimism) const;
    double rate_plain() const;
    double rate_ahead(int32_t n, const outlook & round, double optimism) const; // with drafts made ahead
    plan best_of(draft_way way, double optimism) const;                         // rate 0: it is not possible
    plan best_choice(double optimism) const; // among the ways that are known, or all with some optimism
    bool wants_ahead(int32_t n);
    const plan * other_way(const plan & now, plan & out);
    bool may_lose(double seconds) const;
    void spent(double seconds, double tokens, bool was_probe);

    const int32_t n_max;
    const bool start_plain;
    recent_median plain;
    recent_median rollback;
    std::array<history, DRAFT_WAYS> ways;
    std::array<recent_median, DRAFT_N_MAX + 1> verify; // by tokens drafted
    std::array<recent_median, DRAFT_N_MAX + 1> verify_ahead;
    position used_ahead;      // of drafts made ahead behind one that was accepted whole
    uint64_t since_ahead = 0; // rounds
    uint64_t ahead_after = 4; // rounds after which it is tried
    draft_may may;
    draft_choice last = { 0, false, false, DRAFT_AS_ASKED };
    double elapsed_s = 0.0;
    double lost_s = 0.0;      // by probes and by rounds that turned out worse than plain steps
    uint64_t since_plain = 0; // rounds
    uint64_t plain_after = 4; // rounds after which a plain step is measured again
    uint64_t since_probe = 0; // steps
    uint64_t turn = 0;
    uint64_t way_turn = 0;
    double rate_before = 0.0;    // what a draft in another way has to beat; 0: the last step was none
    double lost_on_ways_s = 0.0; // by such drafts, against the way that was best
};
