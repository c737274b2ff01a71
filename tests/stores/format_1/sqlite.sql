PRAGMA auto_vacuum=INCREMENTAL;
BEGIN TRANSACTION;
CREATE TABLE call(
    session INTEGER, call_id TEXT, place INTEGER NOT NULL, data TEXT NOT NULL, PRIMARY KEY(session, call_id)
) WITHOUT ROWID;
INSERT INTO "call" VALUES(1,'c-1',8,'{"call_id":"c-1","name":"agent.status","turn_id":"turn-1","source":"device","effect":"read","opened_ms":1772366400123,"result":null,"notes":[],"untrusted":false,"consent":""}');
INSERT INTO "call" VALUES(1,'c-2',3,'{"call_id":"c-2","name":"agent.status","turn_id":"turn-1","source":"device","effect":"read","opened_ms":1772366400123,"result":{"type":"result","call_id":"c-2","content":"{\"日\":\"本\"}","is_error":true,"untrusted":false},"notes":[],"untrusted":false,"consent":""}');
INSERT INTO "call" VALUES(1,'c-3',6,'{"call_id":"c-3","name":"agent.status","turn_id":"turn-1","source":"device","effect":"read","opened_ms":1772366400123,"result":{"type":"result","call_id":"c-3","content":"x","is_error":false,"untrusted":false},"notes":[],"untrusted":false,"consent":""}');
CREATE TABLE field(
    session INTEGER, name TEXT, value TEXT NOT NULL, PRIMARY KEY(session, name)
) WITHOUT ROWID;
INSERT INTO "field" VALUES(1,'a','b');
INSERT INTO "field" VALUES(1,'line','a
b');
INSERT INTO "field" VALUES(1,'locale','en-US');
INSERT INTO "field" VALUES(2,'grants','all');
CREATE TABLE log(
    session INTEGER, position INTEGER, data TEXT NOT NULL, PRIMARY KEY(session, position)
) WITHOUT ROWID;
INSERT INTO "log" VALUES(1,1,'{"type":"assistant","text":"Let me look.","calls":[{"call_id":"c-1","name":"clock","arguments":"{"}],"opaque":"[{\"a\":1}]","provider":"anthropic"}');
INSERT INTO "log" VALUES(1,2,'{"type":"result","call_id":"c-1","content":"{\"success\":true}","is_error":true,"untrusted":false}');
INSERT INTO "log" VALUES(1,3,'{"type":"assistant","text":"It is","calls":[],"opaque":null,"provider":null}');
INSERT INTO "log" VALUES(1,4,'{"type":"note","text":"An agent is done.","untrusted":false}');
INSERT INTO "log" VALUES(1,5,'{"type":"user","text":"more"}');
INSERT INTO "log" VALUES(1,6,'{"type":"assistant","text":"two","calls":[],"opaque":null,"provider":null}');
INSERT INTO "log" VALUES(1,7,'{"type":"user","text":"line  separator"}');
CREATE TABLE outbound(
    session INTEGER, event_id TEXT, place INTEGER NOT NULL, data TEXT NOT NULL, PRIMARY KEY(session, event_id)
) WITHOUT ROWID;
INSERT INTO "outbound" VALUES(1,'evt-0',9,'{"event_id":"evt-0","kind":"speak","call_id":"c-9","turn_id":"turn-1","created_ms":1772366400123,"frame":{"text":"日本 \" 🎉"},"effect":"write"}');
INSERT INTO "outbound" VALUES(1,'evt-3',7,'{"event_id":"evt-3","kind":"speak","call_id":"c-9","turn_id":"turn-1","created_ms":1772366400123,"frame":{"text":"日本 \" 🎉"},"effect":"write"}');
CREATE TABLE seen(
    session INTEGER, event_id TEXT, place INTEGER NOT NULL, PRIMARY KEY(session, event_id)
) WITHOUT ROWID;
INSERT INTO "seen" VALUES(1,'in-1',1);
INSERT INTO "seen" VALUES(1,'in-2',2);
CREATE TABLE session(
    id INTEGER PRIMARY KEY,
    subject TEXT NOT NULL,
    session_id TEXT NOT NULL,
    token TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    revision INTEGER NOT NULL,
    commit_id TEXT NOT NULL,
    log_start INTEGER NOT NULL,
    log_end INTEGER NOT NULL,
    placed INTEGER NOT NULL,     -- the last place given to a call or an outbound event
    remembered INTEGER NOT NULL, -- inbound ids noted so far: the place of the last one
    updated REAL NOT NULL,       -- epoch seconds
    UNIQUE(subject, session_id)
);
INSERT INTO "session" VALUES(1,'subject','s-1','1.6ce89059a506f49f89de721dd28b815c',2,4,'commit-3',1,8,9,2,1772366400.5);
INSERT INTO "session" VALUES(2,'subject','$grants','2.1ee6fbd4bc99692ceecd7778329c6080',1,1,'commit-1',0,0,0,0,1772366400.5);
INSERT INTO "session" VALUES(3,'a/b {c}','s-2','3.f094d73a793f2595bed9cb2c7b2110ee',1,0,'',0,0,0,0,1772366400.5);
COMMIT;
PRAGMA application_id=1131376228;
PRAGMA user_version=1;
