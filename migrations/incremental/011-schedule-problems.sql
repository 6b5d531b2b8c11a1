-- Why a schedule does not fire; null: it does.
alter table agent.cron add column problem text;
