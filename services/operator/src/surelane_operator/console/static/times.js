// Writes each time in the person's time zone, with UTC beside it; or how long ago it is.
const UNITS = [
  ["day", 86400],
  ["hour", 3600],
  ["minute", 60],
  ["second", 1],
];
const words = new Intl.RelativeTimeFormat("en", { numeric: "auto", style: "short" });
const written = (timeZone) => new Intl.DateTimeFormat("sv-SE", { dateStyle: "short", timeStyle: "medium", timeZone });
const [here, utc] = [written(), written("UTC")]; // 2026-01-31 12:00:00
const zone = here.resolvedOptions().timeZone;

function ago(at) {
  const seconds = (at - Date.now()) / 1000;
  const [unit, size] = UNITS.find(([, size]) => Math.abs(seconds) >= size) ?? UNITS.at(-1);
  return words.format(Math.round(seconds / size), unit);
}

// A time keeps its form: with the date or without it, to the minute, the second or the millisecond.
function inZone(at, form) {
  const local = `${here.format(at)}.${String(at.getMilliseconds()).padStart(3, "0")}`;
  const start = form.includes("-") ? 0 : 11;
  return local.slice(start, start + form.length);
}

export function sayTimes(root = document) {
  for (const element of root.querySelectorAll("time[datetime]")) {
    const at = new Date(element.dateTime);
    const [local, world] = [here.format(at), utc.format(at)];
    const { textContent: form } = element;
    element.title ||= local === world ? `${world} UTC` : `${local} ${zone} · ${world} UTC`;
    const text = "ago" in element.dataset ? ago(at) : inZone(at, form);
    if (form !== text) element.textContent = text;
    // A time stands on the same day in most zones: then UTC's date is not said again.
    if (local !== world) element.dataset.utc = local.slice(0, 10) === world.slice(0, 10) ? world.slice(11) : world;
  }
  for (const { dataset, firstChild } of root.querySelectorAll("title[data-at]"))
    firstChild.data = firstChild.data.replace(/^\d\d:\d\d/, (form) => inZone(new Date(dataset.at), form));
}

// What a person types into the filter is a time in their zone. The address has it in UTC.
export function askTimes() {
  document.querySelector("#zone").textContent = `Times are in ${zone}.`;
  const form = document.querySelector("form.filter:has([data-utc])");
  for (const field of form?.querySelectorAll("[data-utc]") ?? []) {
    const at = new Date(/[Z+]|-\d\d:\d\d$/.test(field.value) ? field.value : `${field.value}Z`);
    if (!isNaN(at)) field.value = here.format(at).slice(0, 16);
    field.labels[0].firstChild.data = field.dataset.utc;
  }
  form?.addEventListener("formdata", ({ formData }) => {
    for (const { name } of form.querySelectorAll("[data-utc]")) {
      const at = new Date(formData.get(name));
      if (!isNaN(at)) formData.set(name, `${at.toISOString().slice(0, 16)}Z`);
    }
  });
}
