-- The queue's figures, measured once for all who ask: again after 15 seconds, or later where measuring takes long, so that it costs one percent of a
-- processor at most, given up or not. Who finds that it is time measures (fresh); who comes meanwhile gets what was measured before. Null: nothing was
-- yet. began and ended are when this call did, by the database's clock, for the caller to compare its own with.
create or replace function agent.measure_queue() returns jsonb
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    _began timestamptz := agent.clock();
    _figures jsonb;
begin
    perform from agent.measurement where due <= _began for update skip locked;
    if found then
        begin
            _figures := agent.queue_figures((select figures -> 'holder' from agent.measurement));
        exception when query_canceled then
            null; -- by a timeout: put off as well, or the next to come would try as long and as vainly
        end;
        update agent.measurement set figures = coalesce(_figures, figures), measured_at = case when _figures is null then measured_at else _began end
        , due = _began + greatest(interval '15 seconds', 100 * (agent.clock() - _began));
    end if;
    return (
        select figures || jsonb_build_object('fresh', _figures is not null, 'measured_at', extract(epoch from measured_at)
            , 'began', extract(epoch from _began), 'ended', extract(epoch from agent.clock()))
        from agent.measurement where measured_at is not null);
end
$$;
