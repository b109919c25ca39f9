PRAGMA application_id = 1684760432;
PRAGMA user_version = 1;
BEGIN TRANSACTION;
CREATE TABLE jobs (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    command TEXT NOT NULL,
    options TEXT NOT NULL,
    name TEXT,
    owner TEXT,
    owner_key TEXT NOT NULL,
    idempotency_key TEXT,
    outputs TEXT NOT NULL,
    state TEXT NOT NULL,
    created TEXT NOT NULL,
    started TEXT,
    finished TEXT,
    finished_at REAL,
    attempt INTEGER NOT NULL DEFAULT 0,
    generation INTEGER NOT NULL DEFAULT 0,
    deaths INTEGER NOT NULL DEFAULT 0,
    resume INTEGER NOT NULL DEFAULT 0,
    service TEXT,
    stop TEXT,
    cancel_requested INTEGER NOT NULL DEFAULT 0,
    deadline_seconds REAL,
    started_at REAL,
    ran_seconds REAL NOT NULL DEFAULT 0,
    exit_code INTEGER,
    error TEXT,
    document TEXT,
    progress TEXT,
    dashboard_link TEXT
);
INSERT INTO "jobs" VALUES(1,'27c30dab7cad','tune','{"dataset": "/PLACE/train.zarr", "out": "/PLACE/tuned.json", "subset": 200}',NULL,NULL,'',NULL,'["/PLACE/tuned.json"]','queued','2026-11-22T09:20:08.956+00:00',NULL,NULL,NULL,0,0,0,0,NULL,NULL,0,NULL,NULL,0.0,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "jobs" VALUES(2,'c6b74657c422','train','{"dataset": "/PLACE/train.zarr", "hyper": "/PLACE/hyper.json", "out": "/PLACE/model.zarr", "solver": {"solver": "pcg", "tolerance": 1e-05, "rank": 60, "landmarks": "uniform"}, "checkpoint_seconds": 5.0}',NULL,NULL,'',NULL,'["/PLACE/model.zarr", "/PLACE/model.zarr.checkpoint"]','queued','2026-11-22T09:20:09.034+00:00',NULL,NULL,NULL,0,0,0,0,NULL,NULL,0,NULL,NULL,0.0,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "jobs" VALUES(3,'477b26ef5e42','train','{"dataset": "/PLACE/train.zarr", "hyper": "/PLACE/hyper.json", "out": "/PLACE/gbcd.zarr", "solver": {"block_size": 50, "candidates": 20, "memory": 3, "precision": "double", "duality_gap": 0.001, "variables_per_step": 1}}',NULL,NULL,'',NULL,'["/PLACE/gbcd.zarr", "/PLACE/gbcd.zarr.checkpoint"]','queued','2026-11-22T09:20:09.041+00:00',NULL,NULL,NULL,0,0,0,0,NULL,NULL,0,NULL,NULL,0.0,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "jobs" VALUES(4,'0dbe0caebc5a','predict','{"model": "/PLACE/model.zarr", "dataset": "/PLACE/train.zarr", "out": "/PLACE/pred.zarr", "variance": {"gap": 0.05, "latent": true}}',NULL,NULL,'',NULL,'["/PLACE/pred.zarr"]','queued','2026-11-22T09:20:09.096+00:00',NULL,NULL,NULL,0,0,0,0,NULL,NULL,0,NULL,NULL,0.0,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "jobs" VALUES(5,'94fd07ddeca5','evaluate','{"prediction": "/PLACE/pred.zarr", "dataset": "/PLACE/train.zarr", "noise_free": true}',NULL,NULL,'',NULL,'[]','queued','2026-11-22T09:20:09.102+00:00',NULL,NULL,NULL,0,0,0,0,NULL,NULL,0,NULL,NULL,0.0,NULL,NULL,NULL,NULL,NULL);
CREATE TABLE outputs (url TEXT PRIMARY KEY, job_id TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO "outputs" VALUES('/PLACE/pred.zarr','0dbe0caebc5a');
INSERT INTO "outputs" VALUES('/PLACE/tuned.json','27c30dab7cad');
INSERT INTO "outputs" VALUES('/PLACE/gbcd.zarr','477b26ef5e42');
INSERT INTO "outputs" VALUES('/PLACE/gbcd.zarr.checkpoint','477b26ef5e42');
INSERT INTO "outputs" VALUES('/PLACE/model.zarr','c6b74657c422');
INSERT INTO "outputs" VALUES('/PLACE/model.zarr.checkpoint','c6b74657c422');
CREATE INDEX jobs_by_state ON jobs (state, sequence);
CREATE UNIQUE INDEX jobs_by_key ON jobs (owner_key, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX outputs_by_job ON outputs (job_id);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('jobs',5);
COMMIT;
