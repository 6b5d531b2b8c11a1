-- What models used, by day (UTC). Budgets count it. Retention and erasing take rows.
create table agent.model_usage
( day date not null
, owner_id text not null  -- the workspace; empty without one
, user_id text not null   -- the person; empty without one
, model text not null
, requests int8 not null
, input_tokens int8 not null
, output_tokens int8 not null
, cost numeric not null   -- by the team's prices
, latest text not null    -- the response that was counted last
, primary key (day, owner_id, user_id, model)
);

-- What people set in Slack for agents, such as "answer in French".
create table agent.rule
( id int8 not null primary key  -- of the event that set it, so that it is set once
, owner_id text not null        -- the workspace
, about text not null           -- a channel or a person of it, or itself
, said text not null            -- JSON, encrypted where encryption is on
, set_by text not null
, set_at timestamptz not null
);
create index rule_about on agent.rule (owner_id, about, id);

-- What people think of answers: a row for each turn and person.
create table agent.feedback
( event_id int8 not null  -- the turn; 0: rating counts the reminders of the person
, owner_id text not null  -- the person's workspace; empty without one
, user_id text not null
, channel text not null
, kind text not null      -- of the turn, and its handler's version
, version text not null
, model text not null     -- of the turn's last response; empty: not known
, rating int4 not null    -- 1 good, -1 bad
, reason jsonb            -- encrypted where encryption is on, for its place in click
, click int8 not null     -- the event that rated last
, at timestamptz not null
, primary key (event_id, owner_id, user_id)
);
create index feedback_at on agent.feedback (at, event_id, user_id);
