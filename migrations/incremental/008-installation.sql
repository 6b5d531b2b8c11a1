-- Installations of the Slack app by OAuth: the tokens of a workspace or of a whole organization. A
-- row without a person holds the bot's tokens; a row with one holds that person's.
create table agent.installation
( enterprise_wide boolean not null
, owner_id text not null           -- the organization if enterprise_wide, else the workspace
, user_id text not null default ''
, app_id text not null default ''
, details jsonb not null           -- ids, names and scopes: no secrets
, sealed bytea not null            -- the tokens, encrypted by the services
, expires_at timestamptz           -- when the access token expires; null: never
, version int8 not null default 1  -- counts changes of the tokens: the fence of a refresh
, refreshing_until timestamptz     -- one process refreshes the tokens until then
, installed_at timestamptz not null default clock_timestamp()
, previous bytea                   -- as sealed before a rotation, until that opened its work
, primary key (owner_id, enterprise_wide, user_id)
, constraint installation_ids_short
  check (owner_id <> '' and length(owner_id) <= 100 and length(user_id) <= 100)
);
create index installation_expires_at on agent.installation (expires_at) where expires_at is not null;

-- Events that wait until their workspace or organization installs the app. A row may stay after its
-- event has ended, until an hour after the deadline.
create table agent.install_wait
( event_id int8 not null primary key
, owner_id text not null
, enterprise_wide boolean not null
, until timestamptz not null
, user_id text not null default ''  -- whose account; empty: the bot's
);
create index install_wait_owner on agent.install_wait (owner_id, enterprise_wide);
create index install_wait_until on agent.install_wait (until);
create index install_wait_user on agent.install_wait (user_id) where user_id <> '';

-- Workspaces and organizations that have removed the app, until they install it again or their data
-- is erased.
create table agent.uninstall
( owner_id text not null
, enterprise_wide boolean not null  -- the owner is an organization
, enterprise_id text                -- a workspace's organization
, at timestamptz not null
, erasure_id int8                   -- begun by a worker
, primary key (owner_id, enterprise_wide)
);

-- Data keys: each encrypts what people of one workspace wrote. The services encrypt them in turn,
-- so the database never has one in the clear. Workspace '': events without a workspace.
create table agent.data_key
( id bytea not null primary key
, workspace text not null
, sealed bytea not null   -- the key, encrypted with one of SURELANE_ENCRYPTION_KEYS
, made_at timestamptz not null default clock_timestamp()
, retired_at timestamptz  -- since when it encrypts nothing: its workspace is being erased
, previous bytea          -- as sealed before a rotation, until that opened its work
, left_at timestamptz     -- since when it encrypts nothing: a rotation could not open it
, constraint data_key_workspace_short check (length(workspace) <= 100)
);
create unique index data_key_current on agent.data_key (workspace)
where retired_at is null and left_at is null;
