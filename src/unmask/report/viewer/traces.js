"use strict";
// Traces in the format of docs/trace.md: checked, and the packed numbers unpacked when a trajectory is first shown.
const Traces = (() => {
  const refuse = (place, expected) => {
    throw new Error(`${place}: expected ${expected}`);
  };
  const isText = value => typeof value === "string";
  const isWhole = (value, low, high) => Number.isInteger(value) && value >= low && value < high;

  function ids(value, place, count, low = 0, high = 2 ** 31) {
    if (!Array.isArray(value) || (count !== null && value.length !== count))
      refuse(place, `a list of ${count ?? "some"} whole numbers`);
    if (!value.every(item => isWhole(item, low, high))) refuse(place, `whole numbers from ${low} to ${high - 1}`);
    return value;
  }

  // Returns the trace, or throws an error that names the field that is wrong.
  function check(trace) {
    if (trace === null || typeof trace !== "object" || trace.format !== "unmask-trace")
      refuse("the file", 'a trace, "format": "unmask-trace"');
    if (trace.version !== 1)
      refuse("version", `1, got ${JSON.stringify(trace.version)}; record the trace again with this version of unmask`);
    if (!["grid", "text"].includes(trace.kind)) refuse("kind", "grid or text");
    for (const key of ["task", "problem", "denoiser", "decoding"]) if (!isText(trace[key])) refuse(key, "text");
    if (trace.labels === null || typeof trace.labels !== "object" || !Object.values(trace.labels).every(isText))
      refuse("labels", "texts by token");
    const length = ids(trace.prompt, "prompt", null).length;
    if (!length) refuse("prompt", "at least one position");
    if (trace.target !== null) ids(trace.target, "target", length);
    ids(trace.end_ids, "end_ids", null);
    ids(trace.block, "block", length, -1);
    if (!isWhole(trace.mask_id, 0, 2 ** 31)) refuse("mask_id", "a token");
    if (trace.kind === "grid") {
      const shape = trace.grid;
      if (!shape || !["size", "box_rows", "box_cols"].every(key => isWhole(shape[key], 1, 65)))
        refuse("grid", "a size and the box's rows and columns");
      if (shape.size ** 2 !== length) refuse("grid", `the shape of ${length} cells`);
    }
    if (!Array.isArray(trace.trajectories) || !trace.trajectories.length) refuse("trajectories", "at least one trajectory");
    trace.trajectories.forEach((trajectory, n) => checkTrajectory(trajectory, `trajectory ${n}`, length));
    return trace;
  }

  function checkTrajectory(trajectory, place, length) {
    if (trajectory === null || typeof trajectory !== "object" || !isText(trajectory.scheduler)) refuse(place, "a trajectory with its scheduler");
    ids(trajectory.tokens, `${place}, tokens`, length);
    const reveals = ids(trajectory.order, `${place}, order`, null, 0, length).length;
    const taken = (trajectory.taken_back ??= []);
    checkSteps(trajectory, taken, place, length);
    if (!Array.isArray(trajectory.logp) || trajectory.logp.length !== reveals || !trajectory.logp.every(Number.isFinite))
      refuse(`${place}, logp`, "a number per reveal");
    if (!Number.isFinite(trajectory.total_logp) && !(trajectory.total_logp === null && taken.length))
      refuse(`${place}, total_logp`, "a number");
    if (!isWhole(trajectory.denoiser_calls, 0, 2 ** 53)) refuse(`${place}, denoiser_calls`, "a count");
    if (trajectory.first_wrong !== null && !isWhole(trajectory.first_wrong, 0, reveals))
      refuse(`${place}, first_wrong`, "a reveal or null");
    if (trajectory.others === null || typeof trajectory.others !== "object") refuse(`${place}, others`, "positions by scheduler");
    const steps = stepsOf(trajectory);
    for (const [name, positions] of Object.entries(trajectory.others)) ids(positions, `${place}, others, ${name}`, steps, 0, length);
  }

  // What is taken back is revealed once more, and a step may do nothing else.
  function checkSteps({ order, step }, taken, place, length) {
    if (!Array.isArray(taken)) refuse(`${place}, taken_back`, "a list");
    taken.forEach(event => ids(event, `${place}, taken_back`, 3));
    if (taken.some(([, position]) => position >= length)) refuse(`${place}, taken_back`, "positions");
    if (new Set(order).size < order.length - taken.length)
      refuse(`${place}, order`, "each position once, and once more whenever it was taken back");
    ids(step, `${place}, step`, order.length, 0, Math.max(1, 2 * (length + taken.length)));
    const gap = taken.length ? Infinity : 1;
    if (step.some((when, k) => when - (k ? step[k - 1] : 0) > (k ? gap : 0) || (k && when < step[k - 1])))
      refuse(`${place}, step`, "ascending steps");
  }

  const stepsOf = trajectory => (trajectory.step.length ? trajectory.step[trajectory.step.length - 1] + 1 : 0);

  async function inflate(text, bytes, place) {
    if (!isText(text)) refuse(place, "packed numbers");
    const binary = atob(text),
      packed = new Uint8Array(binary.length);
    for (let i = 0; i < binary.length; i++) packed[i] = binary.charCodeAt(i);
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
    const content = new Uint8Array(bytes),
      reader = stream.getReader();
    for (let filled = 0; ;) {
      const { done, value } = await reader.read();
      if (done) {
        if (filled !== bytes) refuse(place, `${bytes} bytes`);
        return content.buffer;
      }
      if (filled + value.length > bytes) {
        reader.cancel();
        refuse(place, `${bytes} bytes`);
      }
      content.set(value, filled);
      filled += value.length;
    }
  }

  // Little-endian, whatever the machine: every browser's machine is.
  const probability = code => (code === 0 ? 0 : code === 65535 ? 1 : 1 / (1 + Math.exp(16 - ((code - 1) / 65533) * 32)));

  // The candidates of a trajectory: start[s] is where those of step s begin, place(s, position) the index of one, −1 if it was none.
  async function candidates(trace, trajectory) {
    const packed = trajectory.candidates,
      steps = stepsOf(trajectory),
      length = trace.prompt.length,
      row = Math.ceil(length / 8);
    if (packed === null || packed === undefined) return null;
    const vocabulary = Object.keys(trace.labels)
      .map(Number)
      .sort((a, b) => a - b);
    if (!isWhole(packed.alternatives, 1, 33) || steps * length > 2 ** 27)
      refuse("candidates", "at most 32 alternatives and 2^27 bits");
    const bits = new Uint8Array(await inflate(packed.eligible, steps * row, "eligible"));
    const eligible = (step, position) => (bits[step * row + (position >> 3)] >> (position & 7)) & 1;
    const index = new Int32Array(steps * length).fill(-1),
      start = new Int32Array(steps + 1);
    let n = 0;
    for (let step = 0; step < steps; step++) {
      for (let position = 0; position < length; position++) if (eligible(step, position)) index[step * length + position] = n++;
      start[step + 1] = n;
    }
    const width = packed.alternatives;
    const Index = vocabulary.length <= 2 ** 8 ? Uint8Array : vocabulary.length <= 2 ** 16 ? Uint16Array : Uint32Array;
    const [token, p, score, truth] = await Promise.all([
      inflate(packed.token, n * width * Index.BYTES_PER_ELEMENT, "token"),
      inflate(packed.probability, n * width * 2, "probability"),
      inflate(packed.score, n * 4, "score"),
      packed.truth === null ? null : inflate(packed.truth, n * 2, "truth"),
    ]);
    const tokens = new Index(token),
      chances = new Uint16Array(p),
      scores = new Float32Array(score),
      truths = truth && new Uint16Array(truth);
    return {
      count: step => start[step + 1] - start[step],
      place: (step, position) => (step >= 0 && step < steps ? index[step * length + position] : -1),
      score: i => scores[i],
      truth: i => (truths ? probability(truths[i]) : null),
      best: i => ({ token: vocabulary[tokens[i * width]], p: probability(chances[i * width]) }),
      alternatives: i =>
        Array.from({ length: width }, (_, a) => ({
          token: vocabulary[tokens[i * width + a]],
          p: probability(chances[i * width + a]),
        })).filter(one => one.p > 0),
      // How many candidates of the step score higher, and one more.
      rank: (step, i) => {
        let above = 1;
        for (let j = start[step]; j < start[step + 1]; j++) if (scores[j] > scores[i]) above++;
        return above;
      },
    };
  }

  // Is a token given that writes nothing, such as the ends that a model puts around a text?
  const isSilent = (trace, position) =>
    trace.kind === "text" && trace.prompt[position] !== trace.mask_id && trace.labels[trace.prompt[position]] === "";

  // The number of each position, from 1; silent ones do not count.
  function numbersOf(trace) {
    let count = 0;
    return trace.prompt.map((_, position) => (isSilent(trace, position) ? count : ++count));
  }

  return { check, candidates, stepsOf, isSilent, numbersOf };
})();
