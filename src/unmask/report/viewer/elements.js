"use strict";
// Elements, percentages and the colours of reveals, for the viewer and the playground.
const Elements = (() => {
  const SHAPES = ["◆", "▲", "●", "■", "▼", "★", "◗", "✚"];
  const BLUE = [60, 120, 230];
  const GREY = [170, 170, 170];
  const RED = [215, 70, 40];

  // Text goes into the page as text, never as markup.
  function make(tag, attributes = {}, ...children) {
    const element = document.createElement(tag);
    for (const [key, value] of Object.entries(attributes)) {
      if (key === "class") element.className = value;
      else element.setAttribute(key, value);
    }
    element.append(...children.filter(child => child !== null));
    return element;
  }
  function makeSvg(tag, attributes) {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    return element;
  }
  const percent = p =>
    `${p >= 0.9995 ? "> 99.9" : p > 0 && p < 0.0005 ? "< 0.1" : (100 * p).toFixed(1)} %`.replaceAll(" ", "\u00a0");
  // From the first reveal (0, blue) over grey to the last (1, red), as on the terminal.
  function heat(share) {
    const ends = share < 0.5 ? [BLUE, GREY] : [GREY, RED];
    const along = share < 0.5 ? share * 2 : share * 2 - 1;
    return `rgb(${ends[0].map((from, c) => Math.round(from + (ends[1][c] - from) * along)).join(",")})`;
  }
  return { SHAPES, make, makeSvg, percent, heat };
})();
