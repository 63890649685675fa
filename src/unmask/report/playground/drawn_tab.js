"use strict";
// The tab of a plug-in: one text with gaps, and decodings that are drawn as they go.
const DrawnTab = (() => {
  const { make } = Elements;
  const $ = id => document.getElementById(id);

  return function (choices, showProblem) {
    const { denoisers, missing } = choices;
    const chosen = () => denoisers.find(one => one.name === $("drawn-model").value);
    const entries = Entries($("drawn-entries"), $("drawn-add"), choices, chosen);
    function showDenoiser() {
      $("drawn-example").replaceChildren(make("option", { value: "", disabled: "", hidden: "" }, "your own"), ...chosen().examples.map((one, n) => make("option", { value: n }, one.name)));
      chooseExample(0);
    }
    function chooseExample(nth) {
      const { text, entries: given } = chosen().examples[nth];
      $("drawn-example").value = nth;
      $("drawn-text").value = text;
      entries.showExample(given);
      showProblem(missing ?? "");
    }
    $("drawn-model").append(...denoisers.map(one => make("option", { value: one.name }, Texts.shorten(one.name))));
    $("drawn-model").addEventListener("change", showDenoiser);
    $("drawn-example").addEventListener("change", () => chooseExample(Number($("drawn-example").value)));
    $("drawn-text").addEventListener("input", () => {
      $("drawn-example").value = "";
      showProblem(missing ?? "");
    });
    showDenoiser();

    let request = null;
    return {
      path: "/drawn",
      form: $("drawn-setup"),
      kind: "of-text",
      subject: "the text",
      again: () => $("drawn-text").focus(),
      body() {
        request = { denoiser: $("drawn-model").value, text: $("drawn-text").value.trim(), seed: Number($("drawn-seed").value || 0), entries: entries.read() };
        return request;
      },
      begin(start) {
        const { learned } = denoisers.find(one => one.name === request.denoiser);
        return start.lanes.map((_, n) => new Texts.Lane(n, { ...start, learned }, start.lines[n], true));
      },
      result(lanes) {
        const good = lanes.filter(lane => lane.verdict.judged.good);
        const answers = new Set(lanes.map(lane => lane.verdict.text));
        if (lanes.length === 1) return "";
        if (answers.size === 1) return "All give the same answer.";
        const names = new Intl.ListFormat("en").format(good.map(lane => lane.label));
        const count = `${answers.size} different answers`;
        return good.length === lanes.length ? `${count}, all of them valid.` : good.length ? `${count}; valid: ${names}.` : `${count}, none of them valid.`;
      },
    };
  };
})();
