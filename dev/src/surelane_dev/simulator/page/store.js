// Keep the page's data up to date by the feed.
import { released } from "./press.js";

export const store = {
  team: {},
  bot: null,
  users: new Map(),
  channels: new Map(),
  messages: new Map(),
  deliveries: new Map(),
  statuses: [],
  sessions: [],
  views: new Map(),
  commands: [],
  shortcuts: [],
  homeTab: true,
  canStop: false,
  faults: [],
  workspaces: [],
  installs: false,
  kept: false,
  sockets: { used: false, connections: 0 },
  calls: [],
  methods: [],
  hasQueue: false,
  posting: true,
  problem: "",
  ingestUrl: "",
  user: null,
  channel: null,
  thread: null,
  appTab: "messages",
  unread: new Set(),
  pane: null,
  tab: "faults",
};

const listeners = new Set();
let scheduled = false;

export function onChange(listener) {
  listeners.add(listener);
}

export function changed() {
  if (scheduled) return;
  scheduled = true;
  // Use a timer, because a page in the background gets no animation frames.
  setTimeout(() => {
    scheduled = false;
    released(() => listeners.forEach((listener) => listener()));
  }, 16);
}

// `team`: the workspace that it is about; by default the one that the page shows.
export async function request(method, path, body, team = store.team.id) {
  const options = { method, headers: { "Content-Type": "application/json" } };
  if (body !== undefined) options.body = JSON.stringify(body);
  const response = await fetch(team ? `${path}?team=${encodeURIComponent(team)}` : path, options);
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error || `${response.status}`);
  return answer;
}

export const workspace = (id = store.team.id) => store.workspaces.find((each) => each.id === id);

// What the app offers: its commands or shortcuts, where it is installed.
export const offered = (kind) => (workspace().installed ? store[kind] : []);

export const people = () =>
  [...store.users.values()].filter((user) => !user.is_bot && user.team_id === store.team.id);

// Whether a person may want another workspace than the first one, in which the app is without an install.
export const several = () =>
  store.installs ||
  store.team.id !== store.workspaces[0].id ||
  store.workspaces.slice(1).some(({ installed }) => installed);

export function become(user) {
  store.user = user;
  localStorage.setItem(`user ${store.team.id}`, user);
}

const unreadKey = (channel, team = store.team.id) => `${team}/${channel}`;
export const isUnread = (channel) => store.unread.has(unreadKey(channel));
export const hasUnread = (team) =>
  [...store.unread].some((key) => key.startsWith(`${team}/`) && isFor(team, key.split("/")[1]));

// Whether a channel is for the person of a workspace. The id of direct messages follows from the person's.
function isFor(team, channel) {
  const user = localStorage.getItem(`user ${team}`);
  return !channel.startsWith("D") || !user || channel.slice(1) === user.slice(1);
}

export const read = (channel) => store.unread.delete(unreadKey(channel));

const keyOf = (message) => `${message.channel}/${message.ts}`;

export function messagesOf(channel, thread) {
  return [...store.messages.values()]
    .filter((m) => m.channel === channel && (!m.visible_to || m.visible_to === store.user))
    .filter((m) => (thread ? m.ts === thread || m.thread_ts === thread : m.in_channel))
    .sort((a, b) => (a.ts < b.ts ? -1 : 1));
}

export function deliveriesOf(message) {
  return (store.byMessage?.get(keyOf(message)) || [])
    .map((id) => store.deliveries.get(id))
    .filter((d) => d && !d.own_message && d.team_id === store.team.id);
}

function addDelivery(delivery) {
  if (!store.deliveries.has(delivery.id) && delivery.ts) {
    const key = keyOf(delivery);
    store.byMessage.set(key, [...(store.byMessage.get(key) || []), delivery.id]);
  }
  store.deliveries.set(delivery.id, delivery);
}

let loads = 0;
let held = null; // what the feed brings while a state is read

// Read a workspace's state; without one, or if there is none of that id, the first one's. Return whether it is shown:
// not if another one was wanted meanwhile.
export async function load(team) {
  const mine = ++loads;
  held = [];
  try {
    const state = await request("GET", "/control/state", undefined, team).catch(() =>
      request("GET", "/control/state", undefined, null),
    );
    if (mine !== loads) return false;
    show(state);
    return true;
  } finally {
    if (mine === loads) release();
  }
}

function release() {
  const missed = held;
  held = null;
  missed.forEach(([kind, item]) => take[kind](item));
  changed();
}

function show(state) {
  if (state.team.id !== store.team.id)
    Object.assign(store, {
      channel: null,
      thread: null,
      appTab: "messages",
      pane: store.pane === "thread" ? null : store.pane,
      user: localStorage.getItem(`user ${state.team.id}`),
    });
  store.byMessage = new Map();
  store.deliveries.clear();
  Object.assign(store, {
    team: state.team,
    bot: state.bot,
    statuses: state.statuses,
    sessions: state.sessions,
    views: new Map(state.views.map((views) => [views.user, views])),
    commands: state.commands,
    shortcuts: state.shortcuts,
    homeTab: state.home_tab,
    canStop: state.can_stop,
    faults: state.faults,
    workspaces: state.workspaces,
    installs: state.installs,
    kept: state.kept,
    sockets: state.sockets,
    calls: state.calls,
    methods: state.methods,
    hasQueue: state.has_queue,
    posting: state.posting,
    problem: state.problem,
    ingestUrl: state.ingest_url,
    users: new Map(state.users.map((user) => [user.id, user])),
    channels: new Map(state.channels.map((channel) => [channel.id, channel])),
    messages: new Map(state.messages.map((message) => [keyOf(message), message])),
  });
  state.deliveries.forEach(addDelivery);
  become(people().some(({ id }) => id === store.user) ? store.user : people()[0].id);
}

const isHere = (item) => item.team_id === store.team.id;

const take = {
  message(message) {
    const key = keyOf(message);
    const known = isHere(message) && (store.messages.has(key) || message.channel === store.channel);
    if (!known && message.user !== store.user) store.unread.add(unreadKey(message.channel, message.team_id));
    if (isHere(message)) store.messages.set(key, message);
  },
  deleted: (gone) => isHere(gone) && store.messages.delete(keyOf(gone)),
  delivery: addDelivery,
  statuses: (item) => {
    if (isHere(item)) store.statuses = item.statuses;
  },
  faults: (item) => {
    store.faults = item.faults;
  },
  problem: (item) => {
    store.problem = item.text;
  },
  workspaces: (item) => {
    store.workspaces = item.workspaces;
  },
  sockets: (item) => {
    store.sockets = item.sockets;
  },
  call: (call) => {
    store.calls = [...store.calls.slice(-299), call];
  },
  joined: (item) => isHere(item) && store.channels.get(item.channel)?.members.push(item.user),
  views: (item) => store.views.set(item.user, item),
  sessions: (item) => {
    store.sessions = item.sessions;
  },
};

// Follow the feed. `wanted()` returns the id of the workspace to begin with, if one is asked for.
export function follow(wanted, onState) {
  const source = new EventSource("/control/feed");
  // Read the state anew on each connection: it has the changes that were missed without one.
  source.onopen = async () => {
    await load(store.team.id || wanted());
    onState("live");
  };
  source.onerror = () => onState("away");
  for (const [kind, apply] of Object.entries(take)) {
    source.addEventListener(kind, (event) => {
      const item = JSON.parse(event.data);
      if (held) held.push([kind, item]);
      else apply(item);
      changed();
    });
  }
}
