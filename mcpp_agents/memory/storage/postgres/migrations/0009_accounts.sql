-- `principal` names the account of a principal: its id, and its organization unless that is `local`.
--
-- Organizations that share a database may have principals with the same id. These shared their
-- idempotency keys, and the audit did not tell them apart. What was audited before stays as it is.

SET LOCAL mcpp.scopes = 'all';
UPDATE memory SET principal = principal || '@' || s.organization FROM scope s
    WHERE s.id = memory.scope AND (s.organization <> 'local' OR principal LIKE '%@%');
