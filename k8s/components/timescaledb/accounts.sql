-- The database's accounts, created once, when the data directory is: the image runs this as the superuser, on the database
-- POSTGRES_DB names. Compose mounts the same file. For another database, run it by hand:
--   psql -v ON_ERROR_STOP=1 -d surelane -f accounts.sql     (with the three passwords in the environment)
\getenv owner_password SURELANE_OWNER_PASSWORD
\getenv ingest_password SURELANE_INGEST_PASSWORD
\getenv worker_password SURELANE_WORKER_PASSWORD

-- The owner migrates. It is no superuser; CREATEROLE and the admin option let it give the group roles their rights.
create role surelane login createrole password :'owner_password';
create role agent_ingest nologin;
create role agent_worker nologin;
create role agent_operator nologin;
grant agent_ingest, agent_worker, agent_operator to surelane with admin option;
-- What holds back vacuum can then be named with its state and since when, by functions that tell no more than that.
grant pg_read_all_stats to surelane;

create role surelane_ingest login password :'ingest_password';
create role surelane_worker login password :'worker_password';
grant agent_ingest to surelane_ingest;
grant agent_worker, agent_operator to surelane_worker;

-- Nobody else may even connect.
select format('alter database %I owner to surelane', current_database()) \gexec
select format('revoke all on database %I from public', current_database()) \gexec
select format('grant connect on database %I to agent_ingest, agent_worker, agent_operator', current_database()) \gexec
