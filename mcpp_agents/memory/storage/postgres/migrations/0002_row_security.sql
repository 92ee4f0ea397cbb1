-- Row-level security: a second line of defence behind the conditions in the queries, and the only
-- one for other programs with a role of their own.
--
-- A transaction states in the setting `mcpp.scopes` which scopes it may see: `all` (writes, and the
-- database's owner) or the ids of a view. Without the setting it sees nothing. A role listed in
-- `role_access` sees the projects listed there, and nothing else, whatever it sets.
-- The functions are called in scalar subqueries, so that a query calls them once, not for each row.

CREATE FUNCTION is_listed_role() RETURNS boolean LANGUAGE sql STABLE AS
$$ SELECT EXISTS (SELECT FROM role_access r WHERE r.role = current_user) $$;

CREATE FUNCTION sees_all() RETURNS boolean LANGUAGE sql STABLE AS
$$ SELECT coalesce(current_setting('mcpp.scopes', true) = 'all', false) AND NOT is_listed_role() $$;

CREATE FUNCTION visible_scopes() RETURNS integer[] LANGUAGE sql STABLE AS
$$ SELECT CASE
    WHEN is_listed_role() THEN ARRAY(SELECT id FROM scope)
    WHEN current_setting('mcpp.scopes', true) LIKE '{%'
        THEN current_setting('mcpp.scopes', true)::integer[]
    ELSE '{}'
END $$;

CREATE POLICY reach ON scope USING (
    CASE WHEN (SELECT is_listed_role()) THEN project IS NOT NULL AND EXISTS (
        SELECT FROM role_access r WHERE r.role = current_user
            AND r.organization = scope.organization
            AND (r.project IS NULL OR r.project = scope.project)
    )
    ELSE (SELECT sees_all()) OR id = ANY (
        (SELECT CASE WHEN current_setting('mcpp.scopes', true) LIKE '{%'
            THEN current_setting('mcpp.scopes', true) ELSE '{}' END)::integer[]
    ) END
);
CREATE POLICY reach ON memory
    USING ((SELECT sees_all()) OR scope = ANY ((SELECT visible_scopes())::integer[]));
CREATE POLICY reach ON word_list
    USING ((SELECT sees_all()) OR scope = ANY ((SELECT visible_scopes())::integer[]));
CREATE POLICY reach ON posting
    USING ((SELECT sees_all()) OR scope = ANY ((SELECT visible_scopes())::integer[]));
CREATE POLICY reach ON embedding
    USING ((SELECT sees_all()) OR scope = ANY ((SELECT visible_scopes())::integer[]));
-- A relation is visible if both items are.
CREATE POLICY reach ON relation USING ((SELECT sees_all()) OR (
    EXISTS (SELECT FROM memory m WHERE m.seq = source)
    AND EXISTS (SELECT FROM memory m WHERE m.seq = target)
));
CREATE POLICY reach ON audit USING ((SELECT sees_all()));
CREATE POLICY reach ON opt_out USING ((SELECT sees_all()));
CREATE POLICY reach ON quota USING ((SELECT sees_all()));

ALTER TABLE scope ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
ALTER TABLE memory ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
ALTER TABLE word_list ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
ALTER TABLE posting ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
ALTER TABLE embedding ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
ALTER TABLE relation ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
ALTER TABLE audit ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
ALTER TABLE opt_out ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
ALTER TABLE quota ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
