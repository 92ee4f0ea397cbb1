-- Items and tokens of each domain in a scope: a pack that is restricted to a domain takes the average
-- length, and how many items there are, from the items of that domain, as a file does.

CREATE TABLE scope_domain (
    scope integer NOT NULL REFERENCES scope,
    domain text COLLATE "C" NOT NULL,
    items bigint NOT NULL,
    tokens bigint NOT NULL,
    first bigint,
    last bigint,
    PRIMARY KEY (scope, domain)
);
SET LOCAL mcpp.scopes = 'all';
INSERT INTO scope_domain (scope, domain, items, tokens, first, last)
    SELECT m.scope, m.domain, count(*), sum(w.length), min(m.seq), max(m.seq)
    FROM memory m JOIN word_list w USING (seq)
    WHERE m.domain IS NOT NULL AND m.superseded = 0 GROUP BY m.scope, m.domain;

CREATE POLICY reach ON scope_domain
    USING ((SELECT sees_all()) OR scope IN (SELECT unnest(visible_scopes())));
ALTER TABLE scope_domain ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;

-- Roles that may write items already.
DO $$ DECLARE writer name; BEGIN
    FOR writer IN SELECT r.rolname
        FROM pg_class c, aclexplode(c.relacl) a JOIN pg_roles r ON r.oid = a.grantee
        WHERE c.oid = 'memory'::regclass AND a.privilege_type = 'INSERT'
    LOOP
        EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON scope_domain TO %I', writer);
    END LOOP;
END $$;
