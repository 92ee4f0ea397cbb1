-- Whether a vector is that of a current item: superseded ones take no place among the nearest.

ALTER TABLE embedding ADD COLUMN current boolean NOT NULL DEFAULT true;
SET LOCAL mcpp.scopes = 'all';
UPDATE embedding SET current = false WHERE seq IN (SELECT seq FROM memory WHERE superseded > 0);
