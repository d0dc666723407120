package main

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

func TestCurlPrintsTheBodyOrTheStatus(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/hostName" {
			w.WriteHeader(http.StatusTeapot)
		}
		_, _ = w.Write([]byte("pod-1"))
	}))
	defer server.Close()
	for _, c := range []struct{ command, want string }{
		{"-g -q -s --max-time 15 --connect-timeout 1 " + server.URL + "/hostName", "pod-1"},
		{strings.TrimPrefix(server.URL, "http://") + "/hostName", "pod-1"},
		{"-g -q -s -o /dev/null -w %{http_code} " + server.URL + "/", "418"},
		{server.URL + "/ -o /dev/null -w %{http_code}", "418"},
	} {
		var out strings.Builder
		if code, err := curl(strings.Fields(c.command), nil, &out); code != 0 || err != nil || out.String() != c.want {
			t.Errorf("curl %s: %d, %v, %q, want 0 and %q", c.command, code, err, out.String(), c.want)
		}
	}
	server.Close()
	if code, err := curl([]string{server.URL}, nil, nil); code != cannotConnect || err == nil {
		t.Errorf("without a server: %d, %v", code, err)
	}
	if code, err := curl([]string{"--proxy", "x"}, nil, nil); code != misused || err == nil {
		t.Errorf("with an unknown flag: %d, %v", code, err)
	}
}

func TestNcAsksByUDP(t *testing.T) {
	server, err := new(net.ListenConfig).ListenPacket(context.Background(), "udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close() //nolint:errcheck // the test is over
	go func() {
		buf := make([]byte, 100)
		n, from, err := server.ReadFrom(buf)
		if err == nil && string(buf[:n]) == "hostName\n" {
			_, _ = server.WriteTo([]byte("pod-1"), from)
		}
	}()
	host, port, err := net.SplitHostPort(server.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if code, err := nc([]string{"-w", "1", "-u", host, port}, strings.NewReader("hostName\n"), &out); code != 0 || err != nil || out.String() != "pod-1" {
		t.Errorf("nc() = %d, %v, %q, want 0 and %q", code, err, out.String(), "pod-1")
	}
}

func TestNmeterPrintsTheTime(t *testing.T) {
	var out strings.Builder
	if code, err := nmeter([]string{"-d0", "%3t"}, nil, &out); code != 0 || err != nil {
		t.Fatalf("nmeter() = %d, %v, want 0", code, err)
	}
	if _, err := time.Parse("15:04:05.000\n", out.String()); err != nil {
		t.Error(err)
	}
	if code, err := nmeter([]string{"%c"}, nil, &out); code != misused || err == nil {
		t.Errorf("with another argument: %d, %v", code, err)
	}
}
