-- Only a role that may write items acts as memory, and states which scopes it sees.
--
-- Every role that was not listed in `role_access` did. So a role whose access was withdrawn, by
-- deleting its row, could see everything, and so could the members of a listed group.

CREATE OR REPLACE FUNCTION is_listed_role() RETURNS boolean LANGUAGE sql STABLE
BEGIN ATOMIC
    SELECT EXISTS (
        SELECT FROM role_access r JOIN pg_roles g ON g.rolname = r.role
        WHERE pg_has_role(current_user, g.oid, 'USAGE')
    );
END;

CREATE FUNCTION acts_as_memory() RETURNS boolean LANGUAGE sql STABLE
BEGIN ATOMIC
    SELECT pg_has_role(current_user, c.relowner, 'USAGE')
        OR (has_table_privilege(current_user, c.oid, 'INSERT') AND NOT is_listed_role())
    FROM pg_class c WHERE c.oid = 'memory'::regclass;
END;

CREATE OR REPLACE FUNCTION sees_all() RETURNS boolean LANGUAGE sql STABLE
BEGIN ATOMIC
    SELECT coalesce(current_setting('mcpp.scopes', true) = 'all', false) AND acts_as_memory();
END;

CREATE OR REPLACE FUNCTION visible_scopes() RETURNS integer[] LANGUAGE sql STABLE
BEGIN ATOMIC
    SELECT CASE
        WHEN NOT acts_as_memory() THEN ARRAY(SELECT id FROM scope)
        WHEN current_setting('mcpp.scopes', true) LIKE '{%'
            THEN current_setting('mcpp.scopes', true)::integer[]
        ELSE '{}'
    END;
END;

ALTER POLICY reach ON scope USING (
    CASE WHEN (SELECT acts_as_memory()) THEN (SELECT sees_all()) OR id = ANY (
        (SELECT CASE WHEN current_setting('mcpp.scopes', true) LIKE '{%'
            THEN current_setting('mcpp.scopes', true) ELSE '{}' END)::integer[]
    )
    ELSE project IS NOT NULL AND EXISTS (
        SELECT FROM role_access r JOIN pg_roles g ON g.rolname = r.role
        WHERE pg_has_role(current_user, g.oid, 'USAGE')
            AND r.organization = scope.organization
            AND (r.project IS NULL OR r.project = scope.project)
    ) END
);
