-- Tables of the memory. The search path begins with the schema that they are created in.
--
--   scope            a name as mcpp_agents/memory/access.py builds it; items and tokens of current
--                    items, for averages and the size of a view
--   neighbourhood    a digest of the group of items within which some are neighbours
--   memory.before    the previous neighbour, whose vector counts too
--   memory.near      text of the neighbours
--   memory.grams     character pairs of scripts without spaces
--   memory.more      fields that no query selects by, as JSON
--   word_list        which words and pairs of adjacent words a current item contains, as hashes
--   posting          how often a word occurs in a current item (weighted), and the item's length;
--                    `own` is false if only its neighbours contain the word
--   embedding        one vector per model and item; each model has an HNSW index of its own
--   copied           files that were copied here, by a digest, and how far their audit is
--   role_access      projects that a database role of another program may read

CREATE TABLE scope (
    id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text COLLATE "C" NOT NULL,
    organization text NOT NULL,
    project text,
    items bigint NOT NULL DEFAULT 0,
    tokens bigint NOT NULL DEFAULT 0,
    EXCLUDE USING hash (name WITH =)  -- unique; it may be longer than a B-tree's entries
);
CREATE SEQUENCE memory_number;
CREATE TABLE memory (
    seq bigint PRIMARY KEY,
    id text COLLATE "C" NOT NULL UNIQUE,
    scope integer NOT NULL REFERENCES scope,
    neighbourhood text COLLATE "C" NOT NULL,
    before bigint,
    kind text NOT NULL,
    title text NOT NULL,
    content text NOT NULL,
    keys text NOT NULL,
    near text NOT NULL,
    grams text NOT NULL,
    domain text COLLATE "C",
    created_at double precision NOT NULL,
    since double precision NOT NULL,
    principal text COLLATE "C" NOT NULL,
    author text COLLATE "C",
    origin text NOT NULL,
    idempotency_key text COLLATE "C",
    superseded integer NOT NULL DEFAULT 0,
    more text NOT NULL
);
CREATE INDEX memory_neighbourhood ON memory (scope, neighbourhood, seq);
CREATE INDEX memory_scope ON memory (scope, seq) WHERE superseded = 0;
CREATE INDEX memory_kind ON memory (scope, kind, seq);
CREATE INDEX memory_domain ON memory (scope, domain, seq) WHERE domain IS NOT NULL;
CREATE INDEX memory_before ON memory (before) WHERE before IS NOT NULL;
CREATE INDEX memory_recorded ON memory (principal) WHERE origin = 'bus';
CREATE UNIQUE INDEX memory_key ON memory (principal, coalesce(author, ''), idempotency_key)
    WHERE idempotency_key IS NOT NULL;

CREATE TABLE word_list (
    seq bigint PRIMARY KEY REFERENCES memory ON DELETE CASCADE,
    scope integer NOT NULL,
    length integer NOT NULL,
    words bigint[] NOT NULL,
    pairs bigint[] NOT NULL
);
-- Hashes do not compress.
ALTER TABLE word_list ALTER words SET STORAGE EXTERNAL, ALTER pairs SET STORAGE EXTERNAL;
CREATE TABLE posting (
    word bigint NOT NULL,
    seq bigint NOT NULL,
    scope integer NOT NULL,
    length integer NOT NULL,
    frequency real NOT NULL,
    own boolean NOT NULL,
    PRIMARY KEY (scope, word, seq) INCLUDE (frequency, length)
);

CREATE TABLE relation (
    source bigint NOT NULL REFERENCES memory,
    relationship text NOT NULL,
    target bigint NOT NULL REFERENCES memory,
    PRIMARY KEY (source, relationship, target)
);
CREATE INDEX relation_target ON relation (target);

CREATE TABLE model (
    id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL UNIQUE,
    dimensions integer NOT NULL
);
CREATE TABLE embedding (
    seq bigint NOT NULL REFERENCES memory ON DELETE CASCADE,
    model integer NOT NULL REFERENCES model,
    scope integer NOT NULL,
    domain text COLLATE "C",
    data halfvec NOT NULL,
    PRIMARY KEY (seq, model)
);
CREATE INDEX embedding_scope ON embedding (scope, model);

CREATE TABLE audit (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at double precision NOT NULL,
    principal text NOT NULL,
    author text,
    tool text NOT NULL,
    details text NOT NULL
);
CREATE TABLE opt_out (
    principal text COLLATE "C" NOT NULL,
    context text COLLATE "C" NOT NULL,
    PRIMARY KEY (principal, context)
);
CREATE TABLE quota (
    principal text COLLATE "C" NOT NULL,
    author text COLLATE "C" NOT NULL,
    at double precision NOT NULL,
    items bigint NOT NULL,
    PRIMARY KEY (principal, author, at)
);
CREATE TABLE copied (
    source text PRIMARY KEY,
    last_audit bigint NOT NULL
);
CREATE TABLE role_access (
    role name NOT NULL,
    organization text NOT NULL,
    project text,
    UNIQUE NULLS NOT DISTINCT (role, organization, project)
);
