// Finds the workspace of a request that Slack or a webhook's sender posts, and hands it on unchanged to its installation.
import fs from 'fs';
import querystring from 'querystring';

// The workspace of an event. An organization has several; Slack names the one that authorized the app.
function of_event(event) {
    const authorized = (event.authorizations || [])[0] || {};
    return authorized.team_id || event.team_id || authorized.enterprise_id || event.enterprise_id;
}

// The workspace of a click, a modal or a shortcut: the one whose installation opened the view or posted the message.
// Where none is named, it is the person's, or the organization.
function of_interaction(payload) {
    const view = payload.view || {}, message = payload.message || payload.original_message || {};
    const ours = message.app_id ? message.app_id === payload.api_app_id
        : message.bot_id && payload.type !== 'message_action' && !payload.app_unfurl;
    const made = [view.app_installed_team_id, view.team_id, ours && message.team];
    return made.find((id) => id && id[0] !== 'E')
        || (payload.team || {}).id || (payload.user || {}).team_id || (payload.enterprise || {}).id;
}

function workspace(r) {
    if (r.method !== 'POST') {
        return r.args.team; // of a link that begins an installation
    }
    if (r.uri.startsWith('/v1/triggers/')) {
        return JSON.parse(r.requestText).team_id || r.args.team; // as its sender names it
    }
    if (!(r.headersIn['Content-Type'] || '').startsWith('application/x-www-form-urlencoded')) {
        return of_event(JSON.parse(r.requestText));
    }
    const form = querystring.parse(r.requestText);
    return form.payload ? of_interaction(JSON.parse(form.payload)) : form.team_id || form.enterprise_id;
}

// The installation of a workspace: its file is replaced at once, so the next request reads the new one.
function installation(r, team) {
    try {
        return fs.readFileSync(`${r.variables.workspaces}/${team}`, 'utf8').trim();
    } catch (error) {
        if (error.code !== 'ENOENT' || team === 'default') {
            throw error; // nginx answers 500, and Slack sends again
        }
    }
    return installation(r, 'default');
}

function route(r) {
    let team;
    try {
        team = workspace(r);
    } catch (_) {
        team = undefined; // the default installation says what is wrong with it
    }
    team = typeof team === 'string' && /^[A-Za-z0-9]+$/.test(team) ? team : 'default';
    r.variables.shard = installation(r, team);
    if (!r.variables.upstream) {
        r.error(`the map sends ${team} to ${r.variables.shard}, which shards.conf lacks`);
        r.headersOut['Retry-After'] = '60'; // Slack sends it again
        r.return(503, 'unknown installation\n');
        return;
    }
    r.internalRedirect('@installation');
}

export default { route };
