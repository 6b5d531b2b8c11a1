// Icons as SVG: a machine without a font of emoji shows them, too.
const NS = "http://www.w3.org/2000/svg";
const PATHS = {
  bolt: "M9 1.5 3.5 9H8l-1 5.5L12.5 7H8z",
  check: "M2 2.5h12v11H2zM5 8l2.2 2.5L11 5.5",
  chart: "M2.5 13.5h11M4.5 11V7M8 11V3M11.5 11V5.5",
  close: "M3.5 3.5l9 9M12.5 3.5l-9 9",
  down: "M5 9V2.5H2.5V9zM5 9l3 5c1 0 1.8-.8 1.5-2L9 9.5h4l-1-7H5",
  eyes: "M4.5 3.5c2 0 3 2 3 4.5s-1 4.5-3 4.5-3-2-3-4.5 1-4.5 3-4.5zM11.5 3.5c2 0 3 2 3 4.5s-1 4.5-3 4.5-3-2-3-4.5 1-4.5 3-4.5zM5.5 8v1M12.5 8v1",
  file: "M4 1.5h5l3 3v10H4zM9 1.5v3h3",
  image: "M2 3h12v10H2zM2 11l3.5-3.5 3 3L11 8l3 3M10.5 5.5h.1",
  menu: "M2 4h12M2 8h12M2 12h12",
  more: "M8 3.5v.1M8 8v.1M8 12.5v.1",
  overflow: "M3.5 8h.1M8 8h.1M12.5 8h.1",
  party: "M2 14 5.5 5.5l5 5zM9 4.5c1.5 0 1-2 2.5-2.5M11 7c2-1 2.5.5 3.5-.5M8 1.5v.1M13.5 3.5v.1M13 10v.1",
  robot: "M3.5 5.5h9v7h-9zM8 5.5v-3M6 8.5v1M10 8.5v1M1.5 8v2.5M14.5 8v2.5",
  send: "M2 8 14 2.5 10.5 13.5 8 9zM8 9l6-6.5",
  speech: "M2 3h12v8H8l-3.5 3v-3H2z",
  trash: "M2.5 4h11M6 4V2.5h4V4M4 4l.7 9.5h6.6L12 4M6.7 6.5v4.5M9.3 6.5v4.5",
  up: "M5 7v6.5H2.5V7zM5 7l3-5c1 0 1.8.8 1.5 2L9 6.5h4l-1 7H5",
  warn: "M8 2 14.5 13.5h-13zM8 6.5v3M8 11.5v.1",
};

export function icon(name) {
  const svg = document.createElementNS(NS, "svg");
  const path = document.createElementNS(NS, "path");
  for (const [key, value] of [["viewBox", "0 0 16 16"], ["class", "icon"], ["aria-hidden", "true"]])
    svg.setAttribute(key, value);
  path.setAttribute("d", PATHS[name]);
  svg.append(path);
  return svg;
}

// The icons of the page's own frame, which index.html names.
export function drawFrame() {
  for (const place of document.querySelectorAll("[data-icon]")) place.prepend(icon(place.dataset.icon));
}
