-- Views of thousands of scopes: the owner's, or those of a principal of many projects.
--
-- The index of words begins with the word. A view's postings of a word are then next to each other
-- however many scopes it has; before, each scope was a look-up for each word.
-- The policies compare the scope of a row with a hash table of the visible ones, which a query builds
-- once. Before, each row was compared with one scope after another.
--
--   scope.first, scope.last   the numbers of the first and the last current item

SET LOCAL mcpp.scopes = 'all';

ALTER TABLE posting DROP CONSTRAINT posting_pkey;
ALTER TABLE posting ADD PRIMARY KEY (word, scope, seq) INCLUDE (frequency, length);

ALTER TABLE scope ADD first bigint, ADD last bigint;
UPDATE scope SET (first, last) = (
    SELECT min(seq), max(seq) FROM memory m WHERE m.scope = scope.id AND m.superseded = 0
);

ALTER POLICY reach ON scope USING (
    CASE WHEN (SELECT acts_as_memory()) THEN (SELECT sees_all()) OR id IN (
        SELECT unnest((CASE WHEN current_setting('mcpp.scopes', true) LIKE '{%'
            THEN current_setting('mcpp.scopes', true) ELSE '{}' END)::integer[])
    )
    ELSE project IS NOT NULL AND EXISTS (
        SELECT FROM role_access r JOIN pg_roles g ON g.rolname = r.role
        WHERE pg_has_role(current_user, g.oid, 'USAGE')
            AND r.organization = scope.organization
            AND (r.project IS NULL OR r.project = scope.project)
    ) END
);
ALTER POLICY reach ON memory
    USING ((SELECT sees_all()) OR scope IN (SELECT unnest(visible_scopes())));
ALTER POLICY reach ON word_list
    USING ((SELECT sees_all()) OR scope IN (SELECT unnest(visible_scopes())));
ALTER POLICY reach ON posting
    USING ((SELECT sees_all()) OR scope IN (SELECT unnest(visible_scopes())));
ALTER POLICY reach ON embedding
    USING ((SELECT sees_all()) OR scope IN (SELECT unnest(visible_scopes())));
