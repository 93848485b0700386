package postgres

import (
	"bufio"
	"encoding/binary"
	"io"
)

// stepper hands the driver of a replication session one message after the other,
// never a byte of the next one. The driver answers for the session until the
// changes begin, which the server may send at once; whatever follows its last
// message then lies in br, where the feed finds it.
type stepper struct {
	br   *bufio.Reader
	raw  io.Reader // below br
	head []byte    // of the message, until it is complete
	left int       // of the message, after its head
}

func newStepper(r io.Reader) *stepper {
	return &stepper{br: bufio.NewReaderSize(r, 64<<10), raw: r, head: make([]byte, 0, 5)}
}

// Read implements io.Reader.
func (s *stepper) Read(b []byte) (int, error) {
	if s.left > 0 {
		n, err := s.br.Read(b[:min(len(b), s.left)])
		s.left -= n
		return n, err
	}
	n, err := s.br.Read(b[:min(len(b), cap(s.head)-len(s.head))])
	if s.head = append(s.head, b[:n]...); len(s.head) == cap(s.head) {
		// The length counts itself. The driver refuses one below that.
		s.left = max(int(int32(binary.BigEndian.Uint32(s.head[1:])))-4, 0)
		s.head = s.head[:0]
	}
	return n, err
}
