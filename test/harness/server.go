package harness

import (
	"context"
	"database/sql"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/go-sql-driver/mysql"
)

// A Kind is a database product and its version.
type Kind struct {
	Source  string // the key below `source` in the configuration: mysql, mariadb or postgres
	Version string // of test/servers/SOURCE.sh; empty for its only one
}

// The servers that are to be had.
var (
	MySQL        = Kind{Source: "mysql"}
	MariaDB      = Kind{Source: "mariadb", Version: "11.8"}
	MariaDB10_11 = Kind{Source: "mariadb", Version: "10.11"}
)

func (k Kind) String() string { return k.Source + k.Version }

// Port of the shared server of a kind. All ports of the harness lie in
// 24181-24199, those of PostgreSQL in 25541-25549.
func (k Kind) port() int {
	if k.isPostgres() {
		return k.postgresPort()
	}
	switch k {
	case MySQL:
		return 24181
	case MariaDB:
		return 24182
	default:
		return 24183
	}
}

// Ports for servers that a test has for itself, for what stands between, and
// for the daemon's http.
const (
	PrivatePort  = 24186
	PrivatePort2 = 24187
	S3Port       = 24184
	ToxicPort    = 24185
	ProxyPort    = 24188
	ProxyPort2   = 24189
	httpFirst    = 24190
	httpLast     = 24199
)

// A Server is a running MySQL, MariaDB or PostgreSQL.
type Server struct {
	Kind
	Port int
	// DB is a connection pool of root (of PostgreSQL: postgres, in the database
	// postgres), session time zone UTC, utf8mb4.
	DB *sql.DB

	dir   string
	flags []string
}

// Shared starts the server of a kind on its own port, from an empty data folder.
// The caller stops it by Wipe. It is for TestMain and programs; others use Start.
func Shared(ctx context.Context, k Kind, flags ...string) (*Server, error) {
	return open(ctx, k, k.port(), "", flags)
}

// Start gives the test a server of its own with flags, wiped at its end.
func Start(t T, k Kind, port int, flags ...string) *Server {
	t.Helper()
	s, err := open(t.Context(), k, port, "", flags)
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(s.Wipe)
	return s
}

// Twin starts another, empty server at the address of s, which must be stopped.
func (s *Server) Twin(t T) *Server {
	t.Helper()
	twin, err := open(t.Context(), s.Kind, s.Port, "-twin", s.flags)
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(twin.Wipe)
	return twin
}

func open(ctx context.Context, k Kind, port int, suffix string, flags []string) (*Server, error) {
	base := os.Getenv("LAKESYNC_SERVERS")
	if base == "" {
		base = filepath.Join(os.TempDir(), "lakesync-servers")
	}
	s := &Server{Kind: k, Port: port, flags: flags,
		dir: filepath.Join(base, "run", fmt.Sprintf("harness-%s-%d%s", k, port, suffix))}
	// A run that was killed may have left its server there.
	if _, err := s.script(ctx, "wipe"); err != nil {
		return nil, err
	}
	if suffix != "" && k.isPostgres() {
		// Else it would have the identity of the server whose place it takes.
		if _, err := s.script(ctx, "init"); err != nil {
			return nil, err
		}
	}
	if err := s.start(ctx); err != nil {
		return nil, err
	}
	if k.isPostgres() {
		if err := s.openPostgres(); err != nil {
			return nil, err
		}
		s.DB.SetMaxIdleConns(4)
		return s, nil
	}
	cfg := mysql.NewConfig()
	cfg.User, cfg.Passwd, cfg.Net, cfg.Addr = "root", "root", "tcp", s.Addr()
	cfg.Params = map[string]string{"time_zone": "'+00:00'", "sql_mode": "''"}
	cfg.Collation, cfg.MaxAllowedPacket, cfg.MultiStatements = "utf8mb4_general_ci", 0, true
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		return nil, err
	}
	s.DB = sql.OpenDB(connector)
	// A connection of before a crash of the server is of no use after it.
	s.DB.SetMaxIdleConns(4)
	return s, nil
}

// Addr is host and port.
func (s *Server) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.Port)) }

func (s *Server) script(ctx context.Context, verb string, flags ...string) (string, error) {
	args := []string{verb, "-p", strconv.Itoa(s.Port), "-d", s.dir}
	if s.Version != "" {
		args = append(args, "-v", s.Version)
	}
	if len(flags) > 0 {
		args = append(append(args, "--"), flags...)
	}
	return script(ctx, "servers/"+s.Source+".sh", args...)
}

func (s *Server) start(ctx context.Context) error {
	_, err := s.script(ctx, "start", s.flags...)
	return err
}

// Stop ends the server in good order, Kill as a crash; Restart brings it back
// with its data and, if given, other flags.
func (s *Server) Stop(t T) { t.Helper(); s.must(t, "stop") }

// Kill is a crash of the server.
func (s *Server) Kill(t T) { t.Helper(); s.must(t, "kill") }

// Restart starts the server again on its data, with flags if there are any.
func (s *Server) Restart(t T, flags ...string) {
	t.Helper()
	if len(flags) > 0 {
		s.flags = flags
	}
	if err := s.start(t.Context()); err != nil {
		t.Fatalf("%v", err)
	}
	if !Poll(20*time.Second, func() bool { return s.DB.PingContext(t.Context()) == nil }) {
		t.Fatalf("%s does not answer after its start", s.Kind)
	}
}

func (s *Server) must(t T, verb string) {
	t.Helper()
	if _, err := s.script(context.WithoutCancel(t.Context()), verb); err != nil {
		t.Fatalf("%v", err)
	}
}

// Wipe stops the server and removes its data.
func (s *Server) Wipe() {
	if s.DB != nil {
		if err := s.DB.Close(); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
	if _, err := s.script(context.Background(), "wipe"); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}

// Dir is the server's folder; its data and logs lie below data.
func (s *Server) Dir() string { return s.dir }

// Client runs a program of the server's client package in its root, with its
// socket and user set, and gives its resource usage.
func (s *Server) Client(ctx context.Context, args ...string) (string, error) {
	return s.script(ctx, "run", args...)
}

// ClientCmd is the command of Client, not yet started.
func (s *Server) ClientCmd(ctx context.Context, args ...string) *exec.Cmd {
	all := []string{"run", "-p", strconv.Itoa(s.Port), "-d", s.dir}
	if s.Version != "" {
		all = append(all, "-v", s.Version)
	}
	all = append(append(all, "--"), args...)
	return exec.CommandContext(ctx, filepath.Join(Root(), "test/servers", s.Source+".sh"), all...)
}

// Pid of the server's process; 0 if it doesn't run.
func (s *Server) Pid() int {
	b, err := os.ReadFile(filepath.Join(s.dir, "pid"))
	if err != nil {
		return 0
	}
	f := strings.Fields(string(b))
	if len(f) == 0 {
		return 0
	}
	pid, err := strconv.Atoi(f[0])
	if err != nil || syscall.Kill(pid, 0) != nil {
		return 0
	}
	return pid
}

// Exec runs statements, one call of the server each, in one session of root.
func (s *Server) Exec(t T, statements ...string) {
	t.Helper()
	// A test's own context has ended when its cleanups run.
	if err := s.exec(context.WithoutCancel(t.Context()), statements); err != nil {
		t.Fatalf("%v", err)
	}
}

func (s *Server) exec(ctx context.Context, statements []string) error {
	c, err := s.DB.Conn(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", s.Kind, err)
	}
	defer c.Close() //nolint:errcheck // it goes back to the pool
	for _, q := range statements {
		if _, err := c.ExecContext(ctx, q); err != nil {
			return fmt.Errorf("%s: %.300s: %w", s.Kind, q, err)
		}
	}
	// Session settings of a test are not to reach the next one.
	_, err = c.ExecContext(ctx, s.resetSession())
	return err
}

// Query gives the first value of the first row.
func (s *Server) Query(t T, q string) string {
	t.Helper()
	col := s.Column(t, q)
	if len(col) == 0 {
		t.Fatalf("%s: %s: no row", s.Kind, q)
	}
	return col[0]
}

// Column gives the first value of every row.
func (s *Server) Column(t T, q string) []string {
	t.Helper()
	rows, err := s.DB.QueryContext(t.Context(), q)
	if err != nil {
		t.Fatalf("%s: %s: %v", s.Kind, q, err)
	}
	defer rows.Close() //nolint:errcheck // read to its end
	cols, err := rows.Columns()
	if err != nil {
		t.Fatalf("%s: %s: %v", s.Kind, q, err)
	}
	var first sql.NullString
	vals := []any{&first}
	for len(vals) < len(cols) {
		vals = append(vals, new(any))
	}
	var out []string
	for rows.Next() {
		if err := rows.Scan(vals...); err != nil {
			t.Fatalf("%s: %s: %v", s.Kind, q, err)
		}
		out = append(out, first.String)
	}
	if err := rows.Err(); err != nil {
		t.Fatalf("%s: %s: %v", s.Kind, q, err)
	}
	return out
}

// Database makes an empty database for the test, dropped at its end.
func (s *Server) Database(t T, name string) {
	t.Helper()
	s.Exec(t, "DROP DATABASE IF EXISTS "+Quote(name), "CREATE DATABASE "+Quote(name)+" CHARACTER SET utf8mb4")
}

// Quote is an identifier in backquotes.
func Quote(name string) string { return "`" + strings.ReplaceAll(name, "`", "``") + "`" }

// HTTPAddr is a free address for a daemon's http.
func HTTPAddr(t T) string {
	t.Helper()
	for p := httpFirst; p <= httpLast; p++ {
		addr := fmt.Sprintf("127.0.0.1:%d", p)
		l, err := net.Listen("tcp", addr)
		if err != nil {
			continue
		}
		if err := l.Close(); err != nil {
			t.Fatalf("%v", err)
		}
		return addr
	}
	t.Fatalf("no free port in %d-%d", httpFirst, httpLast)
	return ""
}

// An S3 is a store with the bucket lake.
type S3 struct {
	Endpoint, Bucket, AccessKey, SecretKey, Region string
	// Dir is where the bucket's objects lie as files.
	Dir string

	port int
	dir  string // of the script; empty for its own choice
	env  []string
}

// StartS3 starts the store for the test, wiped at its end.
func StartS3(t T) *S3 { t.Helper(); return StartS3At(t, S3Port, "") }

// StartS3At is StartS3 on a port and with its files below dir, which may be a
// small file system; empty for the script's own choice.
func StartS3At(t T, port int, dir string) *S3 {
	t.Helper()
	s := &S3{port: port, dir: dir}
	run := func(verb string) string {
		out, err := script(context.WithoutCancel(t.Context()), "servers/s3.sh", s.args(verb)...)
		if err != nil {
			t.Fatalf("%v", err)
		}
		return out
	}
	if dir == "" {
		run("wipe")
	}
	out := run("start")
	t.Cleanup(func() {
		if dir == "" {
			run("wipe")
		} else {
			run("kill") // the folder is the caller's
		}
	})
	for line := range strings.Lines(out) {
		k, v, ok := strings.Cut(strings.TrimSpace(line), "=")
		if !ok {
			continue
		}
		v = strings.Trim(v, "'")
		s.env = append(s.env, k+"="+v)
		switch k {
		case "S3_ENDPOINT":
			s.Endpoint = v
		case "S3_BUCKET":
			s.Bucket = v
		case "S3_DIR":
			s.Dir = filepath.Join(v, "data", "lake")
		case "AWS_ACCESS_KEY_ID":
			s.AccessKey = v
		case "AWS_SECRET_ACCESS_KEY":
			s.SecretKey = v
		case "AWS_REGION":
			s.Region = v
		}
	}
	return s
}

// Kill is a crash of the store, Start brings it back with its objects.
func (s *S3) Kill(t T) { t.Helper(); s.run(t, "kill") }

// Start starts the store again.
func (s *S3) Start(t T) { t.Helper(); s.run(t, "start") }

func (s *S3) args(verb string) []string {
	args := []string{verb, "-p", strconv.Itoa(s.port)}
	if s.dir != "" {
		args = append(args, "-d", s.dir)
	}
	return args
}

func (s *S3) run(t T, verb string) {
	t.Helper()
	if _, err := script(t.Context(), "servers/s3.sh", s.args(verb)...); err != nil {
		t.Fatalf("%v", err)
	}
}

// Env are the settings that readers need for this store.
func (s *S3) Env() []string { return slices.Clone(s.env) }
