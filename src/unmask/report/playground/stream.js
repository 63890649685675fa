"use strict";
// Server-sent events as they arrive, and their showing at a chosen speed.
const Stream = (() => {
  // The complete events of a text, and the rest that is still without its end.
  function parse(text) {
    const parts = text.split("\n\n");
    const rest = parts.pop();
    const events = parts
      .map(part => part.match(/^event: (\w+)\ndata: (.*)$/))
      .filter(Boolean)
      .map(([, event, data]) => ({ event, data: JSON.parse(data) }));
    return { events, rest };
  }
  async function* read(body) {
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const { events, rest } = parse(text + value);
      text = rest;
      yield* events;
    }
  }

  // Shows events a round at a time: one step of each lane that still runs, `delay()` milliseconds apart; 0 shows all at once.
  class Player {
    constructor({ delay, lanes, show, announce }) {
      Object.assign(this, { delay, lanes, show, announce });
      this.waiting = [];
      this.timer = 0;
    }
    add(message) {
      this.waiting.push(message);
      if (!this.timer) this.play();
    }
    play() {
      const delay = this.delay();
      const spoken = [];
      let round = delay ? Math.max(1, this.lanes()) : this.waiting.length;
      while (round-- > 0 && this.waiting.length) spoken.push(this.show(this.waiting.shift()));
      if (spoken.some(Boolean)) this.announce(spoken.filter(Boolean).join(" "));
      this.timer = delay || this.waiting.length ? setTimeout(() => this.again(), delay) : 0;
    }
    again() {
      this.timer = 0;
      if (this.waiting.length) this.play();
    }
    clear() {
      clearTimeout(this.timer);
      this.timer = 0;
      this.waiting = [];
    }
  }
  return { parse, read, Player };
})();
