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
  workspace: null,
  sockets: { used: false, connections: 0 },
  calls: [],
  methods: [],
  hasQueue: false,
  posting: true,
  ingestUrl: "",
  user: localStorage.getItem("user") || null,
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

export async function request(method, path, body) {
  const options = { method, headers: { "Content-Type": "application/json" } };
  if (body !== undefined) options.body = JSON.stringify(body);
  const response = await fetch(path, options);
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error || `${response.status}`);
  return answer;
}

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
    .filter((d) => d && !d.own_message);
}

function addDelivery(delivery) {
  if (!store.deliveries.has(delivery.id) && delivery.ts) {
    const key = keyOf(delivery);
    store.byMessage.set(key, [...(store.byMessage.get(key) || []), delivery.id]);
  }
  store.deliveries.set(delivery.id, delivery);
}

async function load() {
  const state = await request("GET", "/control/state");
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
    sockets: state.sockets,
    calls: state.calls,
    methods: state.methods,
    hasQueue: state.has_queue,
    posting: state.posting,
    ingestUrl: state.ingest_url,
    users: new Map(state.users.map((user) => [user.id, user])),
    channels: new Map(state.channels.map((channel) => [channel.id, channel])),
    messages: new Map(state.messages.map((message) => [keyOf(message), message])),
  });
  state.deliveries.forEach(addDelivery);
  if (!store.users.has(store.user)) store.user = state.users.find((user) => !user.is_bot).id;
  changed();
}

const take = {
  message(message) {
    const key = keyOf(message);
    if (!store.messages.has(key) && message.channel !== store.channel && message.user !== store.user) {
      store.unread.add(message.channel);
    }
    store.messages.set(key, message);
  },
  deleted: (gone) => store.messages.delete(keyOf(gone)),
  delivery: addDelivery,
  statuses: (item) => {
    store.statuses = item.statuses;
  },
  faults: (item) => {
    store.faults = item.faults;
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
  joined: ({ channel, user }) => store.channels.get(channel)?.members.push(user),
  views: (item) => store.views.set(item.user, item),
  sessions: (item) => {
    store.sessions = item.sessions;
  },
};

export function follow(onState) {
  const source = new EventSource("/control/feed");
  // Read the state anew on each connection: it has the changes that were missed without one.
  source.onopen = async () => {
    await load();
    onState("live");
  };
  source.onerror = () => onState("away");
  for (const [kind, apply] of Object.entries(take)) {
    source.addEventListener(kind, (event) => {
      apply(JSON.parse(event.data));
      changed();
    });
  }
}
