-- One line per object or grant in schema agent, the same on every supported server. It leaves out
-- the objects of extensions, and the names of owners, which differ between installations. An object
-- whose owner is not the schema's has a line of its own.
with schema as
( select oid, nspowner as owner, nspacl as acl from pg_catalog.pg_namespace where nspname = 'agent' )
, relation as
( select c.oid, c.relkind, c.relname, c.relowner, c.reloptions, c.relacl, c.relrowsecurity, c.relreplident, c.relpersistence
  from pg_catalog.pg_class c join schema s on c.relnamespace = s.oid
  where c.relkind in ('r', 'p', 'v', 'm', 'c', 'S')
  and not exists (select from pg_catalog.pg_depend d where d.objid = c.oid and d.deptype = 'e')
)
, routine as
( select p.*, format('%s(%s)', p.proname, pg_catalog.pg_get_function_identity_arguments(p.oid)) as signature
  from pg_catalog.pg_proc p join schema s on p.pronamespace = s.oid
  where not exists (select from pg_catalog.pg_depend d where d.objid = p.oid and d.deptype = 'e')
)
, access as
( select 'schema agent'::text as object, a.grantee, a.privilege_type, a.is_grantable from schema, aclexplode(acl) a
  union all
  select relname, a.grantee, a.privilege_type, a.is_grantable from relation, aclexplode(relacl) a
  union all
  select format('%s.%s', relname, attname), a.grantee, a.privilege_type, a.is_grantable
  from relation r join pg_catalog.pg_attribute on attrelid = r.oid, aclexplode(attacl) a
  union all
  select signature, a.grantee, a.privilege_type, a.is_grantable
  from routine, aclexplode(coalesce(proacl, acldefault('f', proowner))) a
)
, described (line) as
( select format('%s %s%s%s%s%s%s%s'
    , case relkind when 'v' then 'view' when 'm' then 'materialized view' when 'c' then 'type' when 'S' then 'sequence' else 'table' end, relname
    , case relpersistence when 'u' then ' unlogged' end
    , (select format(' by %s from %s to %s', seqincrement, seqmin, seqmax) || case when seqcycle then ' cycle' else '' end from pg_catalog.pg_sequence where seqrelid = oid)
    , ' with (' || nullif(array_to_string(array(select unnest(reloptions) order by 1), ', '), '') || ')'
    , case when relrowsecurity then ' with row security' end
    , case relreplident when 'f' then ' with full identity' when 'i' then ' with an index as identity' when 'n' then
      case when relkind in ('r', 'p') then ' without identity' end end
    , case when relkind in ('v', 'm') then ' as ' || md5(pg_catalog.pg_get_viewdef(oid)) end)
  from relation
  union all
  select format('column %s.%s %s%s%s%s', relname, attname, pg_catalog.format_type(atttypid, atttypmod)
    , case when attnotnull then ' not null' end
    , case attidentity when 'a' then ' identity always' when 'd' then ' identity by default' end
    , case when attgenerated = '' then ' default ' else ' generated ' end || pg_catalog.pg_get_expr(adbin, adrelid))
  from relation r join pg_catalog.pg_attribute a on a.attrelid = r.oid
  left join pg_catalog.pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
  where attnum > 0 and not attisdropped and relkind in ('r', 'p', 'c')
  union all
  -- PostgreSQL 18 stores not-null constraints as rows. Columns' lines have them on each version.
  select format('constraint %s on %s %s', conname, relname, pg_catalog.pg_get_constraintdef(c.oid))
  from relation r join pg_catalog.pg_constraint c on c.conrelid = r.oid where contype <> 'n'
  union all
  select format('index %s%s', pg_catalog.pg_get_indexdef(indexrelid), case when not (indisvalid and indisready and indislive) then ' (invalid)' end)
  from relation r join pg_catalog.pg_index i on i.indrelid = r.oid
  union all
  -- Leave out the triggers that the extension adds to a hypertable.
  select format('%s%s', pg_catalog.pg_get_triggerdef(t.oid), case tgenabled when 'D' then ' (disabled)' when 'R' then ' (of replicas)' when 'A' then ' (always)' end)
  from relation r join pg_catalog.pg_trigger t on t.tgrelid = r.oid join routine p on p.oid = t.tgfoid
  where not tgisinternal
  union all
  select format('rule %s on %s', rulename, relname) from relation r join pg_catalog.pg_rewrite on ev_class = r.oid where rulename <> '_RETURN'
  union all
  select format('policy %s on %s', polname, relname) from relation r join pg_catalog.pg_policy on polrelid = r.oid
  union all
  -- PostgreSQL writes an SQL body anew from its parse tree: 17.12 writes `update t as x`, and 18.4
  -- writes `update t x`. So bodies are compared without the word AS.
  select concat_ws(' ', 'function', format('%s(%s)', proname, pg_catalog.pg_get_function_arguments(p.oid))
    , 'returns', pg_catalog.pg_get_function_result(p.oid), lanname
    , case provolatile when 'i' then 'immutable' when 's' then 'stable' else 'volatile' end
    , case when proisstrict then 'strict' end, 'parallel ' || proparallel::text
    , case when prosecdef then 'security definer' end
    , 'set ' || array_to_string(proconfig, ', ')
    , 'body ' || md5(coalesce(replace(pg_catalog.pg_get_function_sqlbody(p.oid), ' AS ', ' '), prosrc)))
  from routine p join pg_catalog.pg_language l on l.oid = p.prolang
  union all
  select format('grant %s on %s to %s%s', lower(privilege_type), object
    , case when grantee = 0 then 'public' else pg_catalog.pg_get_userbyid(grantee) end
    , case when is_grantable then ' with grant option' end)
  -- PostgreSQL 16 has no right to vacuum.
  from access, schema where grantee <> owner and privilege_type <> 'MAINTAIN'
  union all
  select format('owner of %s is %s, not the schema''s', relname, pg_catalog.pg_get_userbyid(relowner))
  from relation, schema where relowner <> owner
  union all
  select format('owner of %s is %s, not the schema''s', signature, pg_catalog.pg_get_userbyid(proowner))
  from routine, schema where proowner <> owner
)
select regexp_replace(line, '\s+', ' ', 'g') as line from described order by line collate "C"
