PRAGMA application_id=0;
PRAGMA user_version=0;
BEGIN TRANSACTION;
CREATE TABLE shardq_outbox (
	seq INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	id VARCHAR(330) NOT NULL, 
	kind VARCHAR(10) DEFAULT 'push' NOT NULL, 
	due BIGINT NOT NULL, 
	record BLOB NOT NULL, 
	on_conflict VARCHAR(8) NOT NULL, 
	dedup BIGINT NOT NULL, 
	created BIGINT NOT NULL, 
	moved BIGINT, 
	attempts INTEGER DEFAULT '0' NOT NULL, 
	retry_at BIGINT, 
	failed BIGINT, 
	reason TEXT
);
INSERT INTO "shardq_outbox" VALUES(1,'mail/PkTS5XIkS_QoP','push',2268701082121,X'117B2277686174223A22696E20746865206F7574626F78227D','keep',0,1795661082121,NULL,0,NULL,NULL,NULL);
INSERT INTO "shardq_outbox" VALUES(2,'mail/of another time','cancel',0,X'','keep',0,1795661082122,NULL,0,NULL,NULL,NULL);
CREATE TABLE shardq_outbox_engine (
	one INTEGER NOT NULL, 
	name VARCHAR(64) NOT NULL, 
	embedded BOOLEAN NOT NULL, 
	PRIMARY KEY (one)
);
CREATE INDEX shardq_outbox_waiting ON shardq_outbox (seq) WHERE moved IS NULL AND reason IS NULL;
CREATE INDEX shardq_outbox_ids ON shardq_outbox (id, seq) WHERE moved IS NULL AND failed IS NULL;
CREATE INDEX shardq_outbox_refused ON shardq_outbox (seq) WHERE moved IS NULL AND reason IS NOT NULL;
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('shardq_outbox',2);
COMMIT;
