package mysql

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/go-mysql-org/go-mysql/client"
	gomysql "github.com/go-mysql-org/go-mysql/mysql"

	"github.com/lakesyncd/lakesyncd/config"
	"github.com/lakesyncd/lakesyncd/source"
)

const (
	dialTimeout = 10 * time.Second
	// sideTimeout bounds each read and write of a connection that asks
	// questions; none of ours takes long.
	sideTimeout = 60 * time.Second
)

// conn is a connection to the server whose session says the same wherever the
// server stands and however it is set up: UTC, no SQL mode, utf8mb4, no limits.
type conn struct {
	*client.Conn
	// socket is the transport below the protocol, TLS included: the log and
	// rows of the copy are read from it directly.
	socket  net.Conn
	version string
	mariaDB bool
}

// connect opens a connection. timeout bounds each later read and write; 0 leaves
// them unbounded.
func connect(ctx context.Context, cfg config.MySQL, timeout time.Duration) (*conn, error) {
	tc, err := tlsConfig(cfg)
	if err != nil {
		return nil, err
	}
	c, err := connectOnce(ctx, cfg, tc, timeout)
	if err != nil && tc != nil && tlsMode(cfg) == config.TLSPreferred && strings.Contains(err.Error(), "does not support TLS") {
		c, err = connectOnce(ctx, cfg, nil, timeout)
	}
	if err != nil {
		return nil, fmt.Errorf("connect to %s as %q: %w", address(cfg), cfg.User, err)
	}
	// A server may have anything as its global values, and init_connect runs
	// before this. sql_select_limit alone would cut lists of tables short without
	// a word.
	set := "SET SESSION time_zone='+00:00', sql_mode='', net_write_timeout=3600, net_read_timeout=600, wait_timeout=2147483, lock_wait_timeout=10, sql_quote_show_create=1, " +
		"sql_select_limit=18446744073709551615, sql_big_selects=1, autocommit=1, completion_type=0, sql_auto_is_null=0"
	if c.mariaDB {
		set += ", max_statement_time=0"
	} else {
		set += ", max_execution_time=0"
	}
	if err := c.exec(ctx, set); err != nil {
		c.Close()
		return nil, fmt.Errorf("set up the session at %s: %w", address(cfg), err)
	}
	if err := c.exec(ctx, "SET NAMES utf8mb4"); err != nil {
		c.Close()
		return nil, fmt.Errorf("set up the session at %s: %w", address(cfg), err)
	}
	if !c.mariaDB {
		// Absent before 8.0.30, which has no generated invisible keys either.
		err := c.exec(ctx, "SET SESSION show_gipk_in_create_table_and_information_schema=ON")
		if err != nil && errorCode(err) != gomysql.ER_UNKNOWN_SYSTEM_VARIABLE {
			c.Close()
			return nil, fmt.Errorf("set up the session at %s: %w", address(cfg), err)
		}
	}
	return c, nil
}

func connectOnce(ctx context.Context, cfg config.MySQL, tc *tls.Config, timeout time.Duration) (*conn, error) {
	var raw net.Conn
	dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
		d := net.Dialer{Timeout: dialTimeout, KeepAlive: 15 * time.Second}
		var err error
		raw, err = d.DialContext(ctx, network, addr)
		if err == nil {
			err = raw.SetDeadline(time.Now().Add(2 * dialTimeout))
		}
		return raw, err
	}
	type opened struct {
		c   *client.Conn
		err error
	}
	done := make(chan opened, 1)
	// The handshake takes no context. The goroutine ends with it, at the
	// latest when the deadline set above passes.
	go func() {
		c, err := client.ConnectWithDialer(ctx, "tcp", address(cfg), cfg.User, cfg.Password.Reveal(), "", dial, func(c *client.Conn) error {
			c.ReadTimeout, c.WriteTimeout = timeout, timeout
			if tc != nil {
				c.SetTLSConfig(tc)
			}
			c.SetAttributes(map[string]string{"program_name": "lakesyncd"})
			// Rows of the copy are read off the socket, so the end of a
			// result must look the same on every server.
			c.UnsetCapability(gomysql.CLIENT_DEPRECATE_EOF)
			c.UnsetCapability(gomysql.CLIENT_QUERY_ATTRIBUTES)
			return nil
		})
		done <- opened{c, err}
	}()
	var o opened
	select {
	case o = <-done:
	case <-ctx.Done():
		// Whatever the handshake makes of it is closed by the one who waits.
		go func() {
			if o := <-done; o.c != nil {
				o.c.Close()
			}
		}()
		return nil, ctx.Err()
	}
	if o.err != nil {
		return nil, plain(o.err)
	}
	if err := raw.SetDeadline(time.Time{}); err != nil {
		o.c.Close()
		return nil, err
	}
	v := strings.TrimRight(o.c.GetServerVersion(), "\x00")
	return &conn{Conn: o.c, socket: o.c.Conn.Conn, version: strings.TrimPrefix(v, "5.5.5-"), mariaDB: strings.Contains(strings.ToLower(v), "mariadb")}, nil
}

func address(cfg config.MySQL) string {
	port := cfg.Port
	if port == 0 {
		port = 3306
	}
	return net.JoinHostPort(cfg.Host, strconv.Itoa(port))
}

func tlsMode(cfg config.MySQL) string {
	if cfg.TLS.Mode == "" {
		return config.TLSPreferred
	}
	return cfg.TLS.Mode
}

// tlsConfig is nil for a plain connection. As with MySQL's own client, preferred
// and required encrypt without looking at the certificate.
func tlsConfig(cfg config.MySQL) (*tls.Config, error) {
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

// exec runs a statement without a result.
func (c *conn) exec(ctx context.Context, sql string) error {
	_, err := c.query(ctx, sql)
	return err
}

// query runs a statement in the text protocol. If ctx ends first, the
// connection is of no more use.
func (c *conn) query(ctx context.Context, sql string) (*rows, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { c.socket.Close() })
	r, err := c.Execute(sql)
	if !stop() && ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, plain(err)
	}
	out := &rows{}
	if r.Resultset == nil {
		return out, nil
	}
	for _, f := range r.Fields {
		out.names = append(out.names, string(f.Name))
	}
	for i := range r.Values {
		row := make([]string, len(out.names))
		for j := range row {
			if row[j], err = r.GetString(i, j); err != nil {
				return nil, fmt.Errorf("read column %s: %w", out.names[j], err)
			}
		}
		out.rows = append(out.rows, row)
	}
	return out, nil
}

// one is the first column of the only row; NULL and no row are "".
func (c *conn) one(ctx context.Context, sql string) (string, error) {
	r, err := c.query(ctx, sql)
	if err != nil || len(r.rows) == 0 || len(r.rows[0]) == 0 {
		return "", err
	}
	return r.rows[0][0], nil
}

// first runs the statements in order until the server knows one: they are the
// newer and the older names of one thing.
func (c *conn) first(ctx context.Context, statements ...string) (*rows, error) {
	var errs []error
	for _, s := range statements {
		r, err := c.query(ctx, s)
		if err == nil {
			return r, nil
		}
		errs = append(errs, fmt.Errorf("%s: %w", s, err))
		if errorCode(err) != gomysql.ER_PARSE_ERROR {
			break
		}
	}
	return nil, errors.Join(errs...)
}

// rows is a small result, as text. NULL is "".
type rows struct {
	names []string
	rows  [][]string
}

// at is the named column of row i, whatever its case; "" if there is none.
func (r *rows) at(i int, name string) string {
	for j, n := range r.names {
		if i < len(r.rows) && strings.EqualFold(n, name) {
			return r.rows[i][j]
		}
	}
	return ""
}

// quote makes a string literal for a session without SQL mode.
func quote(s string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`, "\x00", `\0`).Replace(s) + "'"
}

// ident makes a quoted identifier.
func ident(s string) string { return "`" + strings.ReplaceAll(s, "`", "``") + "`" }

// causer is what the errors of the protocol library wrap each other with.
type causer interface{ Cause() error }

// serverError finds the server's own error.
func serverError(err error) *gomysql.MyError {
	for err != nil {
		var my *gomysql.MyError
		if errors.As(err, &my) {
			return my
		}
		c, ok := err.(causer)
		if !ok || c.Cause() == err {
			return nil
		}
		err = c.Cause()
	}
	return nil
}

// errorCode is the server's number of an error, 0 if it isn't the server's.
func errorCode(err error) uint16 {
	if my := serverError(err); my != nil {
		return my.Code
	}
	return 0
}

// plain takes the library's stack traces off an error.
func plain(err error) error {
	if my := serverError(err); my != nil {
		return my
	}
	for {
		c, ok := err.(causer)
		if !ok || c.Cause() == nil || c.Cause() == err {
			return err
		}
		err = c.Cause()
	}
}

// The server's errors that no waiting mends at start: somebody must change the
// configuration or the account.
func refused(err error) bool {
	switch errorCode(err) {
	case gomysql.ER_ACCESS_DENIED_ERROR, gomysql.ER_DBACCESS_DENIED_ERROR, gomysql.ER_BAD_DB_ERROR,
		gomysql.ER_SPECIFIC_ACCESS_DENIED_ERROR, gomysql.ER_TABLEACCESS_DENIED_ERROR, gomysql.ER_COLUMNACCESS_DENIED_ERROR,
		gomysql.ER_HOST_NOT_PRIVILEGED, gomysql.ER_MUST_CHANGE_PASSWORD, gomysql.ER_MUST_CHANGE_PASSWORD_LOGIN,
		1698, // access denied, without a password
		3118, // the account is locked
		4151: // the account is locked (MariaDB)
		return true
	}
	if err == nil {
		return false
	}
	var ca x509.UnknownAuthorityError
	var host x509.HostnameError
	var bad x509.CertificateInvalidError
	var cert *tls.CertificateVerificationError
	if errors.As(err, &ca) || errors.As(err, &host) || errors.As(err, &bad) || errors.As(err, &cert) {
		return true
	}
	t := err.Error()
	return strings.Contains(t, "does not support TLS") || strings.Contains(t, "auth plugin") || strings.Contains(t, "invalid protocol version")
}

// transport reports whether err is the connection's and not the server's answer.
func transport(err error) bool {
	switch errorCode(err) {
	case 0:
		return true
	case gomysql.ER_SERVER_SHUTDOWN, gomysql.ER_CON_COUNT_ERROR, gomysql.ER_TOO_MANY_USER_CONNECTIONS, gomysql.ER_QUERY_INTERRUPTED,
		gomysql.ER_NET_READ_ERROR, gomysql.ER_NET_READ_INTERRUPTED, gomysql.ER_NET_ERROR_ON_WRITE, gomysql.ER_NET_WRITE_INTERRUPTED,
		gomysql.ER_NET_PACKETS_OUT_OF_ORDER, gomysql.ER_NEW_ABORTING_CONNECTION, gomysql.ER_ABORTING_CONNECTION, gomysql.ER_CANT_CREATE_THREAD, gomysql.ER_OUT_OF_RESOURCES, gomysql.ER_OUTOFMEMORY,
		1129, // the host is blocked for the moment
		1927, // connection was killed (MariaDB)
		3032, // the server is offline for maintenance
		4031: // closed for inactivity
		return true
	}
	return false
}
