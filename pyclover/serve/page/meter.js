// Counts drafted and accepted tokens from the timings that each chunk of a stream carries.

export const LAST_ROUNDS = 32;

export class Meter {
  constructor() {
    this.timings = null;
    this.rounds = []; // the last ones: {drafted, accepted}
    this.nDrafted = 0;
    this.nAccepted = 0;
    this.nRounds = 0;
    this.firstPlain = 1; // number of the first token of the answer behind the accepted ones of the last round
    this.firstDrafted = 1;
  }

  // Takes the timings of a chunk; the mark of its text: number of the round whose draft gave its last token, or 0.
  take(timings) {
    if (!timings) return 0;
    const token = timings.predicted_n ?? 0;
    const rounds = timings.draft_rounds ?? 0;
    if (rounds > this.nRounds) {
      const drafted = timings.draft_n - this.nDrafted;
      const accepted = timings.draft_n_accepted - this.nAccepted;
      this.rounds.push({ drafted, accepted });
      this.rounds.splice(0, this.rounds.length - LAST_ROUNDS);
      // the server counts a round before it gives out the round's tokens: the accepted ones, then its own choice
      const single = rounds === this.nRounds + 1;
      this.firstDrafted = token;
      this.firstPlain = single ? token + accepted : token;
      [this.nDrafted, this.nAccepted, this.nRounds] = [timings.draft_n, timings.draft_n_accepted, rounds];
    }
    this.timings = timings;
    return token >= this.firstDrafted && token < this.firstPlain ? this.nRounds : 0;
  }

  get mode() {
    if (this.timings.diffusion_passes > 0) return "block diffusion";
    if (this.nRounds === 0) return "plain";
    return this.timings.draft_relaxed ? "draft-self (relaxed: changes the text)" : "draft-self (lossless)";
  }

  // What was done and how fast, with the mode in front.
  line() {
    const t = this.timings;
    if (t === null) return "";
    const words = [`${this.mode}: ${count(t.predicted_n, "token")}`];
    if (t.predicted_n > 1 && t.predicted_per_second > 0) words.push(`${t.predicted_per_second.toFixed(1)} tok/s`);
    if (t.diffusion_passes > 0) words.push(`${count(t.diffusion_blocks, "block")} in ${t.diffusion_passes} passes`);
    if (this.nRounds > 0) {
      const share = this.nDrafted > 0 ? Math.round((100 * this.nAccepted) / this.nDrafted) : 0;
      words.push(`accepted ${this.nAccepted} of ${this.nDrafted} drafted (${share} %) in ${count(this.nRounds, "round")}`);
    }
    return words.join(" · ");
  }

  // Acceptance by place in the draft: ["1: 90 %", …].
  byPosition() {
    const drafted = this.timings?.draft_n_by_position ?? [];
    const accepted = this.timings?.draft_n_accepted_by_position ?? [];
    return drafted.map((n, i) => `${i + 1}: ${n > 0 ? Math.round((100 * (accepted[i] ?? 0)) / n) : 0} %`);
  }
}

function count(n, word) {
  return `${n} ${word}${n === 1 ? "" : "s"}`;
}
