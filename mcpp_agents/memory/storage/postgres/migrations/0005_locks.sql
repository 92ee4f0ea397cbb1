-- Rows that a transaction locks: `write` by a write, `index` while an index of vectors is built.
--
-- They replace advisory locks, for which PostgreSQL asks no privilege: any role that could connect
-- could hold them, and so stop all writes. To lock a row, a role needs UPDATE on the table.

CREATE TABLE lock (name text PRIMARY KEY);
INSERT INTO lock (name) VALUES ('write'), ('index');

-- Roles that may write items already.
DO $$ DECLARE writer name; BEGIN
    FOR writer IN SELECT r.rolname
        FROM pg_class c, aclexplode(c.relacl) a JOIN pg_roles r ON r.oid = a.grantee
        WHERE c.oid = 'memory'::regclass AND a.privilege_type = 'INSERT'
    LOOP
        EXECUTE format('GRANT SELECT, UPDATE ON lock TO %I', writer);
    END LOOP;
END $$;
