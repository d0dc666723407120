// Package nameserver serves DNS to a test, for a name with several addresses.
package nameserver

import (
	"net"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

// Start serves the IPv4 addresses of a name, with a dot at its end, until the test ends. It returns the address of the
// server, for dns://ADDRESS/NAME:PORT.
func Start(t testing.TB, name string, ips ...string) string {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		<-done
	})
	go func() {
		defer close(done)
		packet := make([]byte, 1500)
		for {
			n, from, err := conn.ReadFrom(packet)
			if err != nil {
				return
			}
			var query dnsmessage.Message
			if query.Unpack(packet[:n]) != nil || len(query.Questions) != 1 {
				continue
			}
			answer := dnsmessage.Message{
				Header:    dnsmessage.Header{ID: query.ID, Response: true, Authoritative: true, RecursionAvailable: true},
				Questions: query.Questions,
			}
			asked := query.Questions[0]
			for _, ip := range ips {
				if asked.Type != dnsmessage.TypeA || asked.Name.String() != name {
					continue
				}
				answer.Answers = append(answer.Answers, dnsmessage.Resource{
					Header: dnsmessage.ResourceHeader{Name: asked.Name, Type: asked.Type, Class: asked.Class, TTL: 1},
					Body:   &dnsmessage.AResource{A: [4]byte(net.ParseIP(ip).To4())},
				})
			}
			if content, err := answer.Pack(); err == nil {
				_, _ = conn.WriteTo(content, from) // the resolver asks again
			}
		}
	}()
	return conn.LocalAddr().String()
}
