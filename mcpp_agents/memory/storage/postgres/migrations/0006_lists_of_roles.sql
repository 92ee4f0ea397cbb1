-- A role sees its own rows of `role_access` only, and those of its groups.
--
-- Every role can read the table, since the functions of row-level security read it as the role that
-- asks: so every one could see the organizations and projects of all others. A role that may change
-- the list sees all of it. `copied` is for memory itself.

CREATE POLICY reach ON role_access USING (
    (SELECT has_table_privilege(current_user, 'role_access'::regclass, 'INSERT'))
    OR EXISTS (
        SELECT FROM pg_roles g WHERE g.rolname = role AND pg_has_role(current_user, g.oid, 'USAGE')
    )
);
CREATE POLICY reach ON copied USING ((SELECT sees_all()));

ALTER TABLE role_access ENABLE ROW LEVEL SECURITY;
ALTER TABLE copied ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
