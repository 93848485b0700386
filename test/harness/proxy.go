package harness

import (
	"io"
	"net"
	"sync"
	"time"
)

// A Proxy stands between the daemon and a server, and can cut, refuse or stall
// what goes through.
type Proxy struct {
	Addr string

	target string

	mu     sync.Mutex
	l      net.Listener
	conns  map[net.Conn]struct{}
	stall  chan struct{} // closed while bytes may pass
	closed bool
}

// NewProxy listens on addr and hands connections on to target, until the test ends.
func NewProxy(t T, addr, target string) *Proxy {
	t.Helper()
	open := make(chan struct{})
	close(open)
	p := &Proxy{Addr: addr, target: target, conns: map[net.Conn]struct{}{}, stall: open}
	if err := p.listen(); err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() {
		p.Down()
		p.Resume()
	})
	return p
}

func (p *Proxy) listen() error {
	l, err := net.Listen("tcp", p.Addr)
	if err != nil {
		return err
	}
	p.mu.Lock()
	p.l, p.closed = l, false
	p.mu.Unlock()
	// It ends when Down closes the listener.
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			// It ends with either of the two connections.
			go p.serve(c)
		}
	}()
	return nil
}

func (p *Proxy) serve(c net.Conn) {
	up, err := net.DialTimeout("tcp", p.target, 5*time.Second)
	if err != nil {
		closeConn(c)
		return
	}
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		closeConn(c)
		closeConn(up)
		return
	}
	p.conns[c], p.conns[up] = struct{}{}, struct{}{}
	p.mu.Unlock()
	var wg sync.WaitGroup
	for _, pair := range [][2]net.Conn{{c, up}, {up, c}} {
		wg.Go(func() {
			p.copy(pair[0], pair[1])
			closeConn(c)
			closeConn(up)
		})
	}
	wg.Wait()
	p.mu.Lock()
	delete(p.conns, c)
	delete(p.conns, up)
	p.mu.Unlock()
}

func (p *Proxy) copy(dst io.Writer, src io.Reader) {
	buf := make([]byte, 32<<10)
	for {
		n, err := src.Read(buf)
		p.mu.Lock()
		gate := p.stall
		p.mu.Unlock()
		<-gate
		if n > 0 {
			if _, err := dst.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// Cut ends all connections; new ones are taken.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		closeConn(c)
	}
}

// Down ends all connections and refuses new ones until Up.
func (p *Proxy) Down() {
	p.mu.Lock()
	if !p.closed {
		p.closed = true
		p.l.Close() //nolint:errcheck // nothing is lost with it
	}
	p.mu.Unlock()
	p.Cut()
}

// Up takes connections again.
func (p *Proxy) Up(t T) {
	t.Helper()
	if err := p.listen(); err != nil {
		t.Fatalf("%v", err)
	}
}

// Stall lets no byte pass until Resume, as a dead network does.
func (p *Proxy) Stall() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stall = make(chan struct{})
}

// Resume ends a Stall.
func (p *Proxy) Resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.stall:
	default:
		close(p.stall)
	}
}

func closeConn(c net.Conn) {
	c.Close() //nolint:errcheck // a connection that is given up
}
