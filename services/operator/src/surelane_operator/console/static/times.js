// Writes beside each time how long ago it is.
const UNITS = [
  ["day", 86400],
  ["hour", 3600],
  ["minute", 60],
  ["second", 1],
];
const words = new Intl.RelativeTimeFormat("en", { numeric: "auto", style: "short" });

export function sayTimes(root = document) {
  for (const element of root.querySelectorAll("time[data-ago]")) {
    const at = new Date(element.dateTime);
    element.title ||= `${element.textContent} UTC`;
    const seconds = (at - Date.now()) / 1000;
    const [unit, size] = UNITS.find(([, size]) => Math.abs(seconds) >= size) ?? UNITS.at(-1);
    const text = words.format(Math.round(seconds / size), unit);
    if (element.textContent !== text) element.textContent = text;
  }
}
