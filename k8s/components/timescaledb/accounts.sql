-- Create the database's accounts. The image runs this once, with a new data directory, as the
-- superuser and on the database that POSTGRES_DB names. Compose mounts the same file. On another
-- server, run it by hand, with the four passwords in the environment:
--   psql -v ON_ERROR_STOP=1 -d surelane -f accounts.sql
\getenv owner_password SURELANE_OWNER_PASSWORD
\getenv ingest_password SURELANE_INGEST_PASSWORD
\getenv worker_password SURELANE_WORKER_PASSWORD
\getenv operator_password SURELANE_OPERATOR_PASSWORD

-- The owner migrates. It is no superuser. CREATEROLE and the admin option let it grant the group
-- roles their rights.
create role surelane login createrole password :'owner_password';
create role agent_ingest nologin;
create role agent_worker nologin;
create role agent_operator nologin;
create role agent_producer nologin;
grant agent_ingest, agent_worker, agent_operator, agent_producer to surelane with admin option;
-- Functions of the owner can then name the session that holds back vacuum, with its state and
-- start. They show nothing else of other sessions.
grant pg_read_all_stats to surelane;

create role surelane_ingest login password :'ingest_password';
create role surelane_worker login password :'worker_password';
create role surelane_operator login password :'operator_password';
grant agent_ingest to surelane_ingest;
grant agent_worker to surelane_worker;
grant agent_operator to surelane_operator;

-- No other role may connect.
select format('alter database %I owner to surelane', current_database()) \gexec
select format('revoke all on database %I from public', current_database()) \gexec
select format('grant connect on database %I to agent_ingest, agent_worker, agent_operator, agent_producer', current_database()) \gexec
