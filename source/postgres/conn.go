package postgres

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/lakesyncd/lakesyncd/config"
	"github.com/lakesyncd/lakesyncd/source"
)

const (
	dialTimeout = 10 * time.Second
	// sideTimeout bounds a question to the server; none of ours takes long.
	sideTimeout = 60 * time.Second
)

// pinned are the settings that the text of values depends on. They are sent at
// the start of every session, where they win over what the role and the database
// have, and are looked at afterwards: a pooler between us and the server may
// drop them.
var pinned = [...][2]string{
	{"client_encoding", "UTF8"},
	{"DateStyle", "ISO"},
	{"IntervalStyle", "postgres"},
	{"TimeZone", "UTC"},
	{"extra_float_digits", "3"},
	{"bytea_output", "hex"},
	{"search_path", `""`},
	{"client_min_messages", "notice"},
	{"statement_timeout", "0"},
	{"idle_in_transaction_session_timeout", "0"},
}

// rows is a small result: rows of columns as text. NULL is nil.
type rows [][][]byte

// text is column j of row i; NULL is "".
func (r rows) text(i, j int) string { return string(r[i][j]) }

// querier asks the server, in a session with the pinned settings. Arguments are
// text and stand for $1, $2, … .
type querier interface {
	query(ctx context.Context, sql string, args ...string) (rows, error)
}

// conn is a session with the pinned settings.
type conn struct {
	*pgconn.PgConn
	version int // server_version_num, 170004 for example
	release string
	in      *stepper // what a replication session has read
}

// sessionKind is what a session is for.
type sessionKind uint8

const (
	sideSession sessionKind = iota
	copySession
	replicationSession
)

// connect opens a session.
func connect(ctx context.Context, o *Options, kind sessionKind) (*conn, error) {
	cfg := o.Config
	tc, err := tlsConfig(cfg)
	if err != nil {
		return nil, err
	}
	c, err := connectOnce(ctx, o, kind, tc)
	if err != nil && tc != nil && tlsMode(cfg) == config.TLSPreferred && strings.Contains(err.Error(), "server refused TLS connection") {
		c, err = connectOnce(ctx, o, kind, nil)
	}
	if err != nil {
		return nil, fmt.Errorf("connect to %s, database %q, as %q: %w", address(cfg), cfg.Database, cfg.User, connectError(err))
	}
	if err := c.verify(ctx); err != nil {
		c.close()
		return nil, fmt.Errorf("set up the session at %s: %w", address(cfg), err)
	}
	return c, nil
}

func connectOnce(ctx context.Context, o *Options, kind sessionKind, tc *tls.Config) (*conn, error) {
	cfg, c := o.Config, &conn{}
	// The struct must come from the parser, which also looks at the environment
	// and at files of the user; everything of that is overwritten.
	pc, err := pgconn.ParseConfig("host=localhost sslmode=disable passfile='' servicefile=''")
	if err != nil {
		return nil, errors.New("the environment holds settings of PostgreSQL's own clients (PG…) that can't be read; unset them")
	}
	pc.Host, pc.Port, pc.Database = cfg.Host, uint16(port(cfg)), cfg.Database
	pc.User, pc.Password = cfg.User, cfg.Password.Reveal()
	pc.TLSConfig, pc.Fallbacks = tc, nil
	pc.ConnectTimeout = 2 * dialTimeout
	pc.DialFunc = (&net.Dialer{Timeout: dialTimeout, KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 6}}).DialContext
	pc.ValidateConnect, pc.AfterConnect = nil, nil
	pc.RuntimeParams = map[string]string{"application_name": "lakesyncd " + o.Pipeline}
	for _, s := range pinned {
		pc.RuntimeParams[s[0]] = s[1]
	}
	switch kind {
	case copySession:
		pc.RuntimeParams["row_security"] = "off"
	case replicationSession:
		pc.RuntimeParams["replication"] = "database"
		pc.BuildFrontend = func(r io.Reader, w io.Writer) *pgproto3.Frontend {
			c.in = newStepper(r)
			return pgproto3.NewFrontend(c.in, w)
		}
		// The creation of a slot waits for old transactions, this long.
		pc.RuntimeParams["lock_timeout"] = "60s"
	}
	pc.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
		o.Log.Debug("notice of the server", "code", n.Code, "text", n.Message)
	}
	c.PgConn, err = pgconn.ConnectConfig(ctx, pc)
	return c, err
}

// connectError takes address and user, which ours names, out of the driver's error.
func connectError(err error) error {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg
	}
	return err
}

// verify looks at the pinned settings and the server's version. It uses the
// simple protocol, which replication sessions understand too.
func (c *conn) verify(ctx context.Context) error {
	names := make([]string, 0, len(pinned)+2)
	for _, s := range pinned {
		names = append(names, "current_setting('"+s[0]+"')")
	}
	names = append(names, "current_setting('server_version_num')", "current_setting('server_version')")
	r, err := c.simple(ctx, "SELECT "+strings.Join(names, ", "))
	if err != nil {
		return err
	}
	if len(r) != 1 || len(r[0]) != len(names) {
		return errors.New("the server does not tell its settings")
	}
	for i, s := range pinned {
		have := r.text(0, i)
		if s[0] == "DateStyle" {
			have, _, _ = strings.Cut(have, ",") // the order of day and month, which ISO doesn't use
		}
		if have != s[1] {
			return fmt.Errorf("%w: %s is %q in a session that asked for %q: something between us and the server (a pooler such as pgbouncer) drops settings; connect to the server directly", source.ErrCannotServe, s[0], have, s[1])
		}
	}
	if c.version, err = strconv.Atoi(r.text(0, len(pinned))); err != nil {
		return fmt.Errorf("read the server's version: %w", err)
	}
	c.release, _, _ = strings.Cut(r.text(0, len(pinned)+1), " ")
	return nil
}

// query implements querier.
func (c *conn) query(ctx context.Context, sql string, args ...string) (rows, error) {
	ctx, cancel := context.WithTimeout(ctx, sideTimeout)
	defer cancel()
	values := make([][]byte, len(args))
	for i, a := range args {
		values[i] = []byte(a)
	}
	r := c.ExecParams(ctx, sql, values, nil, nil, nil).Read()
	if r.Err != nil {
		return nil, r.Err
	}
	return r.Rows, nil
}

// simple runs statements in the simple protocol and returns the last result.
func (c *conn) simple(ctx context.Context, sql string) (rows, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*sideTimeout)
	defer cancel()
	results, err := c.Exec(ctx, sql).ReadAll()
	if err != nil {
		return nil, err
	}
	if len(results) == 0 {
		return nil, nil
	}
	return results[len(results)-1].Rows, nil
}

// close says good-bye and waits for no answer.
func (c *conn) close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = c.Close(ctx)
}

func port(cfg config.Postgres) int {
	if cfg.Port == 0 {
		return 5432
	}
	return cfg.Port
}

func address(cfg config.Postgres) string {
	return net.JoinHostPort(cfg.Host, strconv.Itoa(port(cfg)))
}

func tlsMode(cfg config.Postgres) string {
	if cfg.TLS.Mode == "" {
		return config.TLSPreferred
	}
	return cfg.TLS.Mode
}

// tlsConfig is nil for a plain connection. preferred and required encrypt
// without looking at the certificate.
func tlsConfig(cfg config.Postgres) (*tls.Config, error) {
	mode := tlsMode(cfg)
	if mode == config.TLSDisabled {
		return nil, nil
	}
	tc := &tls.Config{ServerName: cfg.Host, InsecureSkipVerify: mode != config.TLSVerifyFull}
	var roots *x509.CertPool
	if cfg.TLS.CA != "" {
		pem, err := os.ReadFile(cfg.TLS.CA)
		if err != nil {
			return nil, fmt.Errorf("%w: tls.ca: %w", source.ErrCannotServe, err)
		}
		roots = x509.NewCertPool()
		if !roots.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%w: tls.ca: %s holds no certificate", source.ErrCannotServe, cfg.TLS.CA)
		}
		tc.RootCAs = roots
	}
	if cfg.TLS.Cert != "" {
		pair, err := tls.LoadX509KeyPair(cfg.TLS.Cert, cfg.TLS.Key)
		if err != nil {
			return nil, fmt.Errorf("%w: tls.cert and tls.key: %w", source.ErrCannotServe, err)
		}
		tc.Certificates = []tls.Certificate{pair}
	}
	if mode == config.TLSVerifyCA {
		tc.VerifyConnection = func(s tls.ConnectionState) error {
			o := x509.VerifyOptions{Roots: roots, Intermediates: x509.NewCertPool()}
			for _, c := range s.PeerCertificates[1:] {
				o.Intermediates.AddCert(c)
			}
			_, err := s.PeerCertificates[0].Verify(o)
			return err
		}
	}
	return tc, nil
}

// literal makes a string literal. standard_conforming_strings is on everywhere
// but where somebody turned it off on purpose, so a backslash gets the E form.
func literal(s string) string {
	q := "'" + strings.NewReplacer(`\`, `\\`, "'", "''").Replace(s) + "'"
	if strings.Contains(s, `\`) {
		return "E" + q
	}
	return q
}

// ident makes a quoted identifier.
func ident(s string) string { return `"` + strings.ReplaceAll(s, `"`, `""`) + `"` }

// qualified is a table's name in SQL.
func qualified(ns, name string) string { return ident(ns) + "." + ident(name) }

// errorCode is the server's SQLSTATE of an error, "" if it isn't the server's.
func errorCode(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}

func serverError(m *pgproto3.ErrorResponse) *pgconn.PgError { return pgconn.ErrorResponseToPgError(m) }

// login reports whether err is the server's refusal to let us in. At start
// somebody must change the configuration or the account; while running it may be
// a password that is changed in two places, one after the other.
func login(err error) bool {
	switch errorCode(err) {
	case "28000", // no entry in pg_hba.conf, or the role may not log in
		"28P01", // wrong password
		"3D000", // unknown database
		"42501": // a right is missing
		return true
	}
	return false
}

// refused reports whether err is an error that no waiting mends at start.
func refused(err error) bool {
	if err == nil {
		return false
	}
	if login(err) || errorCode(err) == "08P01" {
		return true
	}
	var cert *tls.CertificateVerificationError
	var ca x509.UnknownAuthorityError
	var host x509.HostnameError
	var bad x509.CertificateInvalidError
	if errors.As(err, &cert) || errors.As(err, &ca) || errors.As(err, &host) || errors.As(err, &bad) {
		return true
	}
	return strings.Contains(err.Error(), "server refused TLS connection")
}

// transport reports whether err is the connection's, or an answer of the server
// that it will not give for ever.
func transport(err error) bool {
	code := errorCode(err)
	if code == "" {
		return true
	}
	switch code[:2] {
	case "08", // connection
		"53": // resources: connections, memory, disk
		return true
	}
	switch code {
	case "57P01", "57P02", "57P03", "57P05", // shutting down, crashed, starting up, idle for too long
		"57014", // cancelled
		"55006", // the slot is in use
		"55P03", // a lock was not to be had in time
		"40001", "40P01",
		"58030": // input or output of the server
		return true
	}
	return false
}
