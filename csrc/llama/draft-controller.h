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

struct draft_choice {
    int32_t n;     // tokens to draft; 0: a plain step
    bool is_probe; // to learn something, not because it is thought best
    bool ahead;    // make the next draft in the pass that checks this one
};

class draft_controller {
  public:
    // n_max: at most so many tokens, 1 to DRAFT_N_MAX. start_plain: draft only once it is seen to win.
    draft_controller(int32_t n_max, bool start_plain);

    // n_left: tokens that are still of use. may_ahead: drafts can be made ahead.
    draft_choice choose(uint64_t n_left, bool may_ahead = false);

    // Times in seconds. A plain step of one token:
    void saw_plain(double seconds);
    // A round: tokens that were drafted (1 to n_max), how many of them were checked and accepted, what it cost. preview_s: 0
    // for a draft that was there already. ahead: the next draft was made in the check's pass; used: it can be used.
    void saw_round(int32_t n_drafted, int32_t n_checked, int32_t n_accepted, double preview_s, double verify_s,
                   bool ahead = false, bool used = false);
    // The way back after a round that was not accepted whole.
    void saw_rollback(double seconds);

    // What it believes, for statistics.
    double plain_s() const { return plain.value; }
    double preview_s(int32_t n) const;
    double verify_s(int32_t n) const;
    double ahead_s(int32_t n) const;    // a check in whose pass the next draft is made
    double acceptance(int32_t i) const; // of the i-th token, from 1
    double expected_tokens(int32_t n) const;
    double tokens_per_s(int32_t n) const; // n = 0: plain
    int32_t best() const;                 // n that it thinks best, 0: plain

    uint64_t n_plain = 0;
    uint64_t n_rounds = 0;
    uint64_t n_probes = 0;
    uint64_t n_ahead = 0; // rounds in whose check the next draft was made

  private:
    struct position {
        double accepted = 0.0;
        double rejected = 0.0;
    };

    struct outlook {
        double tokens; // expected of a round
        double whole;  // probability that all of its draft is accepted
    };

    outlook outlook_of(int32_t n, double optimism) const;
    double acceptance_of(int32_t i, double before, double optimism) const;
    double rate(int32_t n, double optimism) const;
    double rate_two(int32_t n, double optimism) const;   // with a pass for the draft
    double rate_ahead(int32_t n, double optimism) const; // with drafts made ahead
    bool wants_ahead(int32_t n);
    int32_t best_n(double optimism) const;
    bool may_lose(double seconds) const;
    void spent(double seconds, double tokens, bool was_probe);

    const int32_t n_max;
    const bool start_plain;
    recent_median plain;
    recent_median rollback;
    std::array<recent_median, DRAFT_N_MAX + 1> preview; // by tokens drafted
    std::array<recent_median, DRAFT_N_MAX + 1> verify;
    std::array<recent_median, DRAFT_N_MAX + 1> verify_ahead;
    position used_ahead;      // of drafts made ahead behind one that was accepted whole
    uint64_t since_ahead = 0; // rounds
    uint64_t ahead_after = 4; // rounds after which it is tried
    bool may_ahead = false;
    std::array<position, DRAFT_N_MAX + 1> at;
    draft_choice last = { 0, false, false };
    double elapsed_s = 0.0;
    double lost_s = 0.0;      // by probes and by rounds that turned out worse than plain steps
    uint64_t since_plain = 0; // rounds
    uint64_t plain_after = 4; // rounds after which a plain step is measured again
    uint64_t since_probe = 0; // steps
    uint64_t turn = 0;
};
