package mysql

import (
	"bytes"
	"compress/flate"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/go-mysql-org/go-mysql/client"
)

var updateCharsets = flag.Bool("update-charsets", false, "write charset_tables.bin from what the server says")

// testServer is one real server of the tests of values and schemas.
type testServer struct {
	name   string
	script []string
	port   int
	flavor Flavor
}

var testServers = []testServer{
	{"MySQL 9.7", []string{"mysql.sh"}, 24101, FlavorMySQL},
	{"MariaDB 11.8", []string{"mariadb.sh", "-v", "11.8"}, 24102, FlavorMariaDB},
	{"MariaDB 10.11", []string{"mariadb.sh", "-v", "10.11"}, 24103, FlavorMariaDB},
}

// start runs the server until the test ends and returns a connection of root.
func (s testServer) start(t *testing.T) *client.Conn {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a server")
	}
	run := func(verb string) {
		args := append([]string{verb}, s.script[1:]...)
		args = append(args, "-p", fmt.Sprint(s.port))
		if out, err := exec.Command("../../test/servers/"+s.script[0], args...).CombinedOutput(); err != nil {
			t.Fatalf("%s %s: %v\n%s", s.script[0], verb, err, out)
		}
	}
	run("start")
	if os.Getenv("LAKESYNC_KEEP_SERVERS") == "" {
		t.Cleanup(func() { run("stop") })
	}
	return s.connect(t)
}

func (s testServer) connect(t *testing.T) *client.Conn {
	t.Helper()
	open := func(password string) (*client.Conn, error) {
		return client.Connect(fmt.Sprintf("127.0.0.1:%d", s.port), "root", password, "", func(c *client.Conn) error {
			c.ReadTimeout, c.WriteTimeout = time.Minute, time.Minute
			return nil
		})
	}
	c, err := open("root")
	if err != nil {
		// Where 127.0.0.1 resolves to a name, MariaDB takes us for root@localhost.
		c, err = open("")
	}
	if err != nil {
		t.Fatalf("connect to %s: %v", s.name, err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func mustExec(t *testing.T, c *client.Conn, sql ...string) {
	t.Helper()
	for _, q := range sql {
		if _, err := c.Execute(q); err != nil {
			t.Fatalf("%s: %v", q, err)
		}
	}
}

// serverTable asks the server what the codes of a character set are in Unicode.
func serverTable(t *testing.T, c *client.Conn, set string, codes [][]byte) []uint16 {
	t.Helper()
	table := make([]uint16, 0, len(codes))
	for len(codes) > 0 {
		n := min(len(codes), 4096)
		var q strings.Builder
		q.WriteString("SELECT CONCAT_WS(','")
		for _, b := range codes[:n] {
			fmt.Fprintf(&q, ",IFNULL(HEX(CONVERT(CONVERT(_binary x'%x' USING %s) USING utf16)),'')", b, set)
		}
		q.WriteString(")")
		r, err := c.Execute(q.String())
		if err != nil {
			t.Fatalf("ask for %s: %v", set, err)
		}
		text, err := r.GetString(0, 0)
		if err != nil {
			t.Fatal(err)
		}
		for i, h := range strings.Split(text, ",") {
			u, err := hex.DecodeString(h)
			if err != nil {
				t.Fatal(err)
			}
			// What has no character comes as a question mark, one for each byte.
			if len(u) != 2 || u[0] == 0 && u[1] == '?' && !bytes.Equal(codes[i], []byte("?")) {
				u = []byte{0, 0}
			}
			table = append(table, uint16(u[0])<<8|uint16(u[1]))
		}
		codes = codes[n:]
		r.Close()
	}
	return table
}

func charsetCodes(kind int) (codes [][]byte) {
	switch kind {
	case 1:
		for i := range 256 {
			codes = append(codes, []byte{byte(i)})
		}
	case 2, 3:
		for i := doubleCodes; i < 0x10000; i++ {
			b := []byte{byte(i >> 8), byte(i)}
			if kind == 3 {
				b = append([]byte{tripleLead}, b...)
			}
			codes = append(codes, b)
		}
	case 4:
		for i := range gbQuadCodes {
			codes = append(codes, []byte{byte(0x81 + i/12600), byte('0' + i/1260%10), byte(0x81 + i/10%126), byte('0' + i%10)})
		}
	}
	return codes
}

func TestCharsetTablesAreTheServersOwn(t *testing.T) {
	for _, s := range testServers {
		t.Run(s.name, func(t *testing.T) {
			c := s.start(t)
			var all []uint16
			for _, set := range append(append([]string{}, charsetSingle...), charsetDouble...) {
				if set == "gb18030" && s.flavor == FlavorMariaDB {
					continue
				}
				var shape [4]int
				shape[0], shape[1], shape[2], shape[3] = charsetShape(set)
				var got [4][]uint16
				for i, n := range shape {
					if n == 0 {
						continue
					}
					if got[i] = serverTable(t, c, set, charsetCodes(i+1)); len(got[i]) != n {
						t.Fatalf("%s: %d codes, want %d", set, len(got[i]), n)
					}
					all = append(all, got[i]...)
				}
				if *updateCharsets {
					continue
				}
				compareCharset(t, set, got)
			}
			if *updateCharsets && s.flavor == FlavorMySQL {
				writeCharsets(t, all)
			}
		})
	}
}

func compareCharset(t *testing.T, set string, server [4][]uint16) {
	t.Helper()
	cs := lookupCharset(set)
	wrong := 0
	for i, table := range server {
		if table == nil {
			continue
		}
		for n, code := range charsetCodes(i + 1) {
			if i > 0 && server[0][code[0]] != 0 {
				continue // two characters
			}
			if i == 1 && cs.Name == "gb18030" && code[1] >= '0' && code[1] <= '9' {
				continue // the beginning of four bytes
			}
			want := ""
			if table[n] != 0 || i == 0 && code[0] == 0 {
				want = string(rune(table[n]))
			}
			got, ok := cs.Append(nil, code)
			if !ok {
				got = nil
			}
			if string(got) != want {
				if wrong++; wrong < 5 {
					t.Errorf("%s %x is %q, the server says %q", set, code, got, want)
				}
			}
		}
	}
}

func writeCharsets(t *testing.T, all []uint16) {
	t.Helper()
	var raw bytes.Buffer
	off := 0
	for _, set := range append(append([]string{}, charsetSingle...), charsetDouble...) {
		s, d, tr, q := charsetShape(set)
		for _, n := range []int{s, d, tr, q} {
			last := uint16(0)
			for _, v := range all[off : off+n] {
				raw.WriteByte(byte((v - last) >> 8))
				raw.WriteByte(byte(v - last))
				last = v
			}
			off += n
		}
	}
	f, err := os.Create("charset_tables.bin")
	if err != nil {
		t.Fatal(err)
	}
	w, _ := flate.NewWriter(f, flate.BestCompression)
	if _, err := w.Write(raw.Bytes()); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}
