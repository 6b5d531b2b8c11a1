// Lets changes of the page wait while a person presses it. An element that is moved or replaced between press and
// release loses the click.
const LONGEST = 2000; // milliseconds; the browser's own menus may keep the release

let overdue = 0;
let waiting = null;

// Runs `work` now, or after the release. Only the last one that waits is run.
export function released(work) {
  if (overdue) waiting = work;
  else work();
}

function release() {
  clearTimeout(overdue);
  overdue = 0;
  const work = waiting;
  waiting = null;
  if (work) setTimeout(() => released(work)); // after the click, which follows the release
}

addEventListener(
  "pointerdown",
  (event) => {
    if (event.button !== 0) return;
    clearTimeout(overdue);
    overdue = setTimeout(release, LONGEST);
  },
  true,
);
for (const end of ["pointerup", "pointercancel", "contextmenu"]) addEventListener(end, release, true);
addEventListener("blur", release);
