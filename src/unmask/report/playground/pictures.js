"use strict";
// A picture beside the tokens of a lane: shapes that the server describes, each with the atoms it belongs to.
const Pictures = (() => {
  const { make, makeSvg } = Elements;

  // `cells` are the tokens of the lane by position; `explain` shows what is known of one.
  return class {
    constructor(cells, explain) {
      Object.assign(this, { cells, explain });
      this.note = make("p", { class: "muted" }, "Nothing is revealed yet.");
      this.element = make("div", { class: "sketch" }, this.note);
      this.shapes = [];
      cells.forEach((cell, position) => {
        for (const event of ["pointerenter", "focus"]) cell.addEventListener(event, () => this.point(position));
        for (const event of ["pointerleave", "blur"]) cell.addEventListener(event, () => this.point(null));
      });
    }
    // `label` is for readers who do not see it; null shapes say that the tokens so far draw nothing.
    show(picture, label) {
      this.note.textContent = "The tokens so far, with the best guesses for the others, cannot be drawn.";
      this.shapes = [];
      if (!picture) return this.element.replaceChildren(this.note);
      const svg = makeSvg("svg", { viewBox: picture.box.join(" "), role: "img", "aria-label": label });
      const positionOf = new Map(picture.parts.map(([position, atom]) => [atom, position]));
      for (const [tag, attributes, atoms] of picture.shapes) {
        const shape = makeSvg(tag, attributes);
        const positions = atoms.map(atom => positionOf.get(atom)).filter(position => position !== undefined);
        // What an atom that is still hidden takes part in is a guess.
        if (positions.some(position => this.cells[position].classList.contains("hidden-now"))) shape.classList.add("guess");
        if (positions.length === 1) shape.addEventListener("pointerenter", () => this.explain(this.cells[positions[0]]));
        this.shapes.push({ shape, positions });
        svg.append(shape);
      }
      return this.element.replaceChildren(svg);
    }
    finish() {
      this.note.textContent = "The answer cannot be drawn.";
    }
    // Marks the shapes of the atom that a token writes.
    point(position) {
      for (const { shape, positions } of this.shapes) shape.classList.toggle("pointed", positions.length === 1 && positions[0] === position);
    }
  };
})();
