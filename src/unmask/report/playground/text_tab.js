"use strict";
// The tab of text races: what to decode, and by which decodings.
const TextTab = (() => {
  const { make } = Elements;
  const $ = id => document.getElementById(id);

  return function (choices, showProblem) {
    const { denoisers, options, settings } = choices;
    const chosen = () => denoisers.find(one => one.name === $("model").value);
    const mode = () => document.querySelector("input[name=mode]:checked").value;
    const entries = Entries($("entries"), $("add-entry"), choices, chosen);

    function showMode() {
      $("length").disabled = mode() === "holes";
      $("hint").textContent = {
        plain: "The model continues this text.",
        chat: "The text goes into the tokenizer’s chat template, as the user’s turn.",
        holes: "<mask> hides a token, <mask:8> eight; everything else stays: prose, JSON, code.",
      }[mode()];
    }
    function showDenoiser() {
      $("text-example").replaceChildren(make("option", { value: "", disabled: "", hidden: "" }, "your own"), ...chosen().examples.map((one, n) => make("option", { value: n }, one.name)));
      chooseExample(0);
    }
    function chooseExample(nth) {
      const { mode: how, text, note, entries: given, length } = chosen().examples[nth];
      $("text-example").value = nth;
      $("written").value = text;
      $("note").textContent = note ?? "";
      $("length").value = length;
      document.querySelector(`input[name=mode][value=${how}]`).checked = true;
      entries.showExample(given);
      showMode();
      showProblem("");
    }
    function own() {
      $("text-example").value = "";
      $("note").textContent = "";
      showProblem("");
    }

    $("model").append(...denoisers.map(one => make("option", { value: one.name }, Texts.shorten(one.name))));
    for (const option of options.filter(one => one.type === "spec")) document.body.append(make("datalist", { id: `choices-${option.name}` }, ...option.enum.map(value => make("option", { value }))));
    $("model").addEventListener("change", showDenoiser);
    $("text-example").addEventListener("change", () => chooseExample(Number($("text-example").value)));
    $("written").addEventListener("input", own);
    for (const radio of document.querySelectorAll("input[name=mode]")) radio.addEventListener("change", () => (showMode(), own()));
    showDenoiser();

    let request = null;
    return {
      path: "/text",
      form: $("text-setup"),
      kind: "of-text",
      subject: "the text",
      again: () => $("written").focus(),
      body() {
        const number = id => Number($(id).value || 0);
        request = { denoiser: $("model").value, mode: mode(), text: $("written").value, length: number("length"), seed: number("seed"), entries: entries.read() };
        return request;
      },
      begin: start =>
        start.lanes.map((_, n) => new Texts.Lane(n, { ...start, learned: denoisers.find(one => one.name === request.denoiser).learned }, { Python: Texts.asPython(request, n, settings), command: Texts.asCommand(request, n, settings) })),
      result(lanes) {
        const different = new Set(lanes.map(lane => lane.verdict.text)).size;
        if (lanes.every(lane => lane.verdict.judged)) {
          const named = good => lanes.filter(lane => lane.verdict.judged.good === good).map(lane => lane.label).join(", ");
          return [["Right", named(true)], ["Wrong", named(false)]].filter(([, names]) => names).map(([word, names]) => `${word}: ${names}.`).join(" ");
        }
        if (lanes.length === 1) return "";
        if (different === 1) return "All give the same text.";
        const best = lanes.reduce((one, other) => ((other.verdict.logp ?? -Infinity) > (one.verdict.logp ?? -Infinity) ? other : one));
        return `${different} different texts; the model finds that of ${best.label} most probable along its path.`;
      },
    };
  };
})();
