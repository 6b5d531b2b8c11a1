-- The queue's figures, measured once for all who ask: again after 15 seconds, or later where measuring takes long, so that it costs one percent of a
-- processor at most. Who finds that it is time measures (fresh); who comes meanwhile gets what was measured before. began and ended are when this
-- call did, by the database's clock, for the caller to compare its own with.
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
        _figures := agent.queue_figures((select figures -> 'holder' from agent.measurement));
        update agent.measurement set figures = _figures, measured_at = _began
        , due = _began + greatest(interval '15 seconds', 100 * (agent.clock() - _began));
    end if;
    return (
        select figures || jsonb_build_object('fresh', measured_at = _began, 'measured_at', extract(epoch from measured_at)
            , 'began', extract(epoch from _began), 'ended', extract(epoch from agent.clock()))
        from agent.measurement where measured_at is not null);
end
$$;
