// Keeps the content up to date by server-sent events, and says when it is not.
import { nameCells } from "./cards.js";
import { morph } from "./morph.js";
import { released } from "./press.js";
import { sayTimes } from "./times.js";

const status = document.querySelector("#connection");
const content = document.querySelector("#live");

function say(state, text) {
  if (status.dataset.state !== state || status.textContent !== text) {
    status.dataset.state = state;
    status.firstElementChild.textContent = text;
    status.title = text;
  }
  document.body.toggleAttribute("data-stale", state === "stale");
}

export function show(html) {
  const wanted = document.createElement("template");
  wanted.innerHTML = html;
  replace(wanted.content);
}

function replace(wanted) {
  released(() => {
    morph(content, wanted);
    sayTimes(content);
    nameCells(content);
    content.dispatchEvent(new Event("shown"));
  });
}

// Reads the page again at once, after an action changed something.
export async function refresh() {
  let response, text;
  try {
    response = await fetch(location.href, { headers: { Accept: "text/html" } });
    text = await response.text();
  } catch {
    return; // The service is away for the moment. The stream says so, and brings the content later.
  }
  if (!response.ok || response.redirected) return location.reload();
  replace(new DOMParser().parseFromString(text, "text/html").querySelector("#live"));
}

export function follow() {
  const every = Number(document.body.dataset.live) * 1000;
  if (!every) return;
  const patience = 3 * every + 5000;
  let source = null;
  let overdue = 0;
  let retry = 0;

  const stale = (why) => say("stale", `not up to date: ${why}`);
  const heard = () => {
    clearTimeout(overdue);
    overdue = setTimeout(() => {
      stale("nothing was heard");
      open();
    }, patience);
  };
  const live = () => {
    heard();
    say("live", "live");
  };
  function close() {
    clearTimeout(overdue);
    clearTimeout(retry);
    source?.close();
    source = null;
  }
  function open() {
    close();
    heard();
    source = new EventSource(location.pathname + location.search);
    source.addEventListener("fragment", (event) => {
      show(JSON.parse(event.data));
      live();
    });
    source.addEventListener("same", live);
    source.addEventListener("away", () => {
      heard();
      stale("the database is away");
    });
    source.addEventListener("again", open);
    source.addEventListener("gone", (event) => {
      close();
      stale(JSON.parse(event.data));
    });
    source.addEventListener("full", (event) => {
      close();
      stale(JSON.parse(event.data));
      retry = setTimeout(open, 30000);
    });
    source.addEventListener("error", () => {
      stale("the connection is lost");
      // The browser does not try again after an answer that is no stream: the service restarts.
      if (source?.readyState === EventSource.CLOSED) {
        close();
        retry = setTimeout(open, 3000);
      }
    });
  }
  // A browser has six connections to a host. Pages in the background give theirs back.
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  addEventListener("pagehide", close);
  addEventListener("pageshow", (event) => event.persisted && open());
  if (!document.hidden) open();
}
