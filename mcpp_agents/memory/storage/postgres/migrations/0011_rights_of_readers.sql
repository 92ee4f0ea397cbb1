-- A role that may only read loses the tables that searches use, and the names of private scopes.
--
-- PostgreSQL looks rows up in an index before it applies the policies, and EXPLAIN ANALYZE tells how
-- many rows these removed. In `posting`, a role could so find out which words a hidden item contains.
-- `memory` has no index of texts; but the planner's estimates tell about the values that it has
-- collected, so it collects none of texts.

DO $$ DECLARE reader text; BEGIN
    FOR reader IN SELECT DISTINCT CASE a.grantee
            WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END
        FROM pg_class c, aclexplode(c.relacl) a
        WHERE c.oid IN ('memory'::regclass, 'scope'::regclass, 'posting'::regclass)
            AND a.privilege_type = 'SELECT' AND CASE a.grantee
                WHEN 0 THEN NOT has_table_privilege('public', 'memory', 'INSERT')
                ELSE NOT has_table_privilege(a.grantee, 'memory', 'INSERT')
            END
    LOOP
        EXECUTE format(
            'REVOKE SELECT ON scope, scope_domain, word_list, posting, model, embedding, audit,'
            ' opt_out, quota, copied, lock, migration FROM %s', reader
        );
        EXECUTE format('GRANT SELECT (id, organization, project) ON scope TO %s', reader);
    END LOOP;
END $$;

ALTER TABLE memory
    ALTER title SET STATISTICS 0, ALTER content SET STATISTICS 0, ALTER keys SET STATISTICS 0,
    ALTER near SET STATISTICS 0, ALTER grams SET STATISTICS 0, ALTER more SET STATISTICS 0;
-- What was collected before can be cleared since PostgreSQL 18 only.
DO $$ DECLARE text_column text; BEGIN
    IF current_setting('server_version_num')::integer >= 180000 THEN
        FOREACH text_column IN ARRAY ARRAY['title', 'content', 'keys', 'near', 'grams', 'more'] LOOP
            PERFORM pg_clear_attribute_stats(current_schema(), 'memory', text_column, false);
        END LOOP;
    END IF;
END $$;
