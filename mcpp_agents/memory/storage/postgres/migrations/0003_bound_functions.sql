-- The functions of row-level security, bound to their tables when they are created.
--
-- A body in quotes looks names up with the caller's search path. A program that named the tables
-- with their schema got an error, and a role could put a temporary table of its own in the place of
-- `role_access`, and so be taken for one that is not listed there.

CREATE OR REPLACE FUNCTION is_listed_role() RETURNS boolean LANGUAGE sql STABLE
BEGIN ATOMIC
    SELECT EXISTS (SELECT FROM role_access r WHERE r.role = current_user);
END;

CREATE OR REPLACE FUNCTION sees_all() RETURNS boolean LANGUAGE sql STABLE
BEGIN ATOMIC
    SELECT coalesce(current_setting('mcpp.scopes', true) = 'all', false) AND NOT is_listed_role();
END;

CREATE OR REPLACE FUNCTION visible_scopes() RETURNS integer[] LANGUAGE sql STABLE
BEGIN ATOMIC
    SELECT CASE
        WHEN is_listed_role() THEN ARRAY(SELECT id FROM scope)
        WHEN current_setting('mcpp.scopes', true) LIKE '{%'
            THEN current_setting('mcpp.scopes', true)::integer[]
        ELSE '{}'
    END;
END;
