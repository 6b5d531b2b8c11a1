// Put the page together: its open parts, the buttons of the frame, and the keyboard.
import { $, setText, toast } from "./dom.js";
import {
  become,
  changed,
  follow,
  load,
  onChange,
  read,
  request,
  several,
  store,
  workspace,
} from "./store.js";
import { composer } from "./composer.js";
import { drawFrame } from "./icons.js";
import { buildHome, openTab, renderHome } from "./home.js";
import { renderModal } from "./modal.js";
import { asked, place, renderRail } from "./rail.js";
import { renderPersona, renderSidebar } from "./sidebar.js";
import { renderMessages, sessionOf } from "./timeline.js";
import { buildTools, renderTools } from "./tools.js";

const WIDE = "(min-width: 760px)";
const VERY_WIDE = "(min-width: 1021px)";

drawFrame();
const main = composer($("composer"), {
  id: "composer-text",
  label: "Message",
  place: () => ({ channel: store.channel }),
  sent: showThread,
});
const side = composer($("thread-composer"), {
  id: "thread-text",
  label: "Reply",
  place: () => ({ channel: store.channel, thread: store.thread }),
});

function openChannel(id) {
  Object.assign(store, { channel: id, thread: null });
  if (store.pane === "thread") store.pane = null;
  location.hash = place();
  showSidebar(false);
  changed();
  if (store.channels.get(id).is_im && workspace().installed) openTab("messages");
  if (matchMedia(WIDE).matches) main.focus();
}

function openThread(ts) {
  Object.assign(store, { thread: ts, pane: "thread" });
  location.hash = place();
  changed();
  setTimeout(side.focus, 30);
}

// On a wide screen, open the thread beside the channel, because the answer will arrive there.
function showThread(message) {
  if (store.pane === "tools" || !matchMedia(VERY_WIDE).matches) return;
  Object.assign(store, { thread: message.ts, pane: "thread" });
  location.hash = place();
  changed();
}

function closePane() {
  const was = store.pane;
  Object.assign(store, { pane: null, thread: null });
  location.hash = place();
  changed();
  (was === "tools" ? $("tools-toggle") : $("composer-text")).focus();
}

function showSidebar(on) {
  document.body.classList.toggle("menu-open", on);
  $("menu").setAttribute("aria-expanded", String(on));
}

function readHash() {
  const { channel, thread } = asked();
  const found = store.channels.get(channel);
  if (found && (!found.is_im || found.user === store.user)) {
    store.channel = channel;
    if (thread && store.messages.has(`${channel}/${thread}`))
      Object.assign(store, { thread, pane: "thread" });
  }
  if (!store.channel) store.channel = store.channels.keys().next().value;
}

function render() {
  if (!store.bot) return;
  if (!store.channel) {
    readHash();
    if (matchMedia(WIDE).matches && document.activeElement === document.body) main.focus();
  }
  read(store.channel);
  const channel = store.channels.get(store.channel);
  const { name, installed, install_url } = workspace();
  document.title = `${several() ? name : "Surelane"} · simulated Slack`;
  renderRail();
  renderPersona();
  renderSidebar(openChannel);
  $("channel-name").textContent = channel.is_im ? store.bot.real_name : `# ${channel.name}`;
  $("channel-topic").textContent = channel.is_im ? "Direct messages with the app" : channel.topic.value;
  $("not-posting").hidden = store.posting;
  $("problem").hidden = !store.problem;
  setText("problem", store.problem && `${store.problem}. Save a change of the code.`);
  $("not-installed").hidden = installed;
  setText("not-installed-name", name);
  $("install").href = install_url;
  $("invite").hidden = !installed || channel.is_im || channel.members.includes(store.bot.id);
  renderHome(channel);
  renderMessages($("messages"), store.channel, null, openThread);
  $("thread").hidden = store.pane !== "thread";
  if (store.pane === "thread") {
    const place = channel.is_im ? store.bot.real_name : `# ${channel.name}`;
    $("thread-channel").textContent = sessionOf(store.channel, store.thread)?.title || place;
    renderMessages($("thread-messages"), store.channel, store.thread, openThread);
  }
  $("tools").hidden = store.pane !== "tools";
  $("tools-toggle").setAttribute("aria-expanded", String(store.pane === "tools"));
  $("fault-count").hidden = store.faults.length === 0;
  $("fault-count").textContent = String(store.faults.length);
  document.body.dataset.pane = store.pane || "";
  main.show();
  side.show();
  renderTools();
  renderModal();
}

$("menu").onclick = () => showSidebar(!document.body.classList.contains("menu-open"));
$("thread-close").onclick = closePane;
$("tools-close").onclick = closePane;
$("tools-toggle").onclick = () => {
  if (store.pane === "tools") closePane();
  else {
    store.pane = "tools";
    changed();
  }
};
$("user").onchange = (event) => {
  become(event.target.value);
  if (store.channels.get(store.channel).is_im)
    openChannel([...store.channels.values()].find((channel) => channel.user === store.user).id);
  changed();
};
$("invite").onclick = async () => {
  try {
    await request("POST", `/control/channels/${store.channel}/members`, { user: store.bot.id });
  } catch (error) {
    toast(error.message, "bad");
  }
};
addEventListener("hashchange", async () => {
  if (!store.bot || location.hash.slice(1) === place()) return;
  const { team } = asked();
  try {
    if (team !== store.team.id && !(await load(team))) return;
  } catch (error) {
    toast(error.message, "bad");
    return;
  }
  showSidebar(false);
  readHash();
  changed();
});
addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || $("modal").open || $("confirm").open) return;
  if (document.body.classList.contains("menu-open")) {
    showSidebar(false);
    $("menu").focus();
  } else if (store.pane) closePane();
});
setInterval(() => {
  if (store.statuses.some((status) => status.until * 1000 < Date.now())) changed();
}, 1000);

buildTools();
buildHome();
onChange(render);
follow(() => asked().team, (state) => {
  $("connection").dataset.state = state;
  $("connection").firstElementChild.textContent = state === "live" ? "live" : "the simulator does not answer";
});
