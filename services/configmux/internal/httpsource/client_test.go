package httpsource

import (
	"bytes"
	"compress/gzip"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// keeps checks that a failure of the server is reported with its reason, at the start and later, and changes no pods.
func keeps(t *testing.T, w *web, fails http.HandlerFunc, reason string, options ...option) {
	t.Helper()
	w.does(fails)
	r := start(t, w.URL, options...)
	r.wantFailed(r.next(), reason)
	w.answer(manifest("a", "i:1"))
	good := r.poll()
	r.want(good, 0, "a-node i:1")
	w.does(fails)
	got := r.poll()
	r.wantFailed(got, reason)
	r.wantFailed(got, "its last known pods are kept")
	if !got.ReadAt.Equal(good.ReadAt) {
		t.Errorf("last read at %s, want %s", got.ReadAt, good.ReadAt)
	}
	if again := r.poll(); again.Errors[0].Message != got.Errors[0].Message {
		t.Errorf("the same failure is %q and then %q", got.Errors[0].Message, again.Errors[0].Message)
	}
	w.answer(manifest("a", "i:1"))
	again := r.poll()
	r.want(again, 0, "a-node i:1")
	if again.Pods[0].Pod != good.Pods[0].Pod {
		t.Error("the pods are others after the same bytes")
	}
}

func TestAnAnswerThatIsNoneKeepsTheLastGoodSet(t *testing.T) {
	w := serve(t, httptest.NewServer)
	tooLarge := bytes.Repeat([]byte("\n"), maxAnswer+1)
	for name, c := range map[string]struct {
		reason string
		fails  http.HandlerFunc
	}{
		"status": {"it answers with the status 503", func(out http.ResponseWriter, _ *http.Request) {
			http.Error(out, manifest("b", "i:1"), http.StatusServiceUnavailable)
		}},
		"no content": {"it answers with the status 204", func(out http.ResponseWriter, _ *http.Request) { out.WriteHeader(http.StatusNoContent) }},
		"too large": {"its answer is larger than 10 MiB", func(out http.ResponseWriter, _ *http.Request) {
			_, _ = out.Write(tooLarge)
		}},
		"too large when unpacked": {"its answer is larger than 10 MiB", func(out http.ResponseWriter, _ *http.Request) {
			out.Header().Set("Content-Encoding", "gzip")
			packed := gzip.NewWriter(out)
			_, _ = packed.Write(tooLarge)
			_ = packed.Close()
		}},
		"cut off": {"the answer is cut off", func(out http.ResponseWriter, _ *http.Request) {
			out.Header().Set("Content-Length", "1000")
			_, _ = out.Write([]byte(manifest("b", "i:1")))
			_ = http.NewResponseController(out).Flush()
			panic(http.ErrAbortHandler)
		}},
		"cut off before its first byte": {"the answer is cut off", func(out http.ResponseWriter, _ *http.Request) {
			out.Header().Set("Content-Length", "1000")
			_ = http.NewResponseController(out).Flush()
			panic(http.ErrAbortHandler)
		}},
		"cut off in chunks": {"the answer is cut off", func(out http.ResponseWriter, _ *http.Request) {
			_ = http.NewResponseController(out).Flush()
			panic(http.ErrAbortHandler)
		}},
		"an empty answer of another status": {"it answers with the status 500", func(out http.ResponseWriter, _ *http.Request) {
			out.WriteHeader(http.StatusInternalServerError)
		}},
		"a redirect without an address": {"it answers with the status 302", func(out http.ResponseWriter, _ *http.Request) {
			out.WriteHeader(http.StatusFound)
		}},
		"closed": {"the connection was closed", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }},
		"redirects for ever": {"it redirects more than 10 times", func(out http.ResponseWriter, request *http.Request) {
			http.Redirect(out, request, "/again", http.StatusFound)
		}},
		"redirects to nowhere": {"it redirects to an address that is not", func(out http.ResponseWriter, _ *http.Request) {
			out.Header().Set("Location", "file:///etc/shadow")
			out.WriteHeader(http.StatusFound)
		}},
		"redirects to what is no URL": {"it redirects to an address that is not", func(out http.ResponseWriter, _ *http.Request) {
			out.Header().Set("Location", "http://u:pass word@x/")
			out.WriteHeader(http.StatusFound)
		}},
	} {
		t.Run(name, func(t *testing.T) { keeps(t, w, c.fails, c.reason) })
	}
}

func TestTheLargestAnswerIsTaken(t *testing.T) {
	w := serve(t, httptest.NewServer)
	pod := manifest("a", "i:1")
	w.answer(pod + "#" + strings.Repeat("x", maxAnswer-len(pod)-1))
	r := start(t, w.URL)
	r.want(r.next(), 0, "a-node i:1")
}

func TestAServerThatHangsIsNotWaitedForForEver(t *testing.T) {
	if answerTimeout != 10*time.Second {
		t.Errorf("an answer may take %s, want 10s", answerTimeout)
	}
	hang := func(_ http.ResponseWriter, request *http.Request) { <-request.Context().Done() }
	for name, hangs := range map[string]http.HandlerFunc{
		"at once": hang,
		"half way": func(out http.ResponseWriter, request *http.Request) {
			_, _ = out.Write([]byte("apiVersion: v1\n"))
			_ = http.NewResponseController(out).Flush()
			hang(out, request)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := serve(t, httptest.NewServer)
			w.answer(manifest("a", "i:1"))
			r := start(t, w.URL, impatient(5*time.Second))
			r.want(r.next(), 0, "a-node i:1")
			w.does(hangs)
			r.wantFailed(r.poll(), "there is no complete answer within 5s")
		})
	}
}

// The end of the process does not wait for a server, and reports no failure because of it.
func TestTheEndDoesNotWaitForAServer(t *testing.T) {
	w := serve(t, httptest.NewServer)
	began := make(chan struct{})
	w.does(func(_ http.ResponseWriter, request *http.Request) {
		close(began)
		<-request.Context().Done()
	})
	r := start(t, w.URL)
	<-began
	r.stop()
	select {
	case got := <-r.given:
		t.Errorf("reading %+v at the end", got)
	default:
	}
}

func TestAServerThatIsAwayKeepsTheLastGoodSet(t *testing.T) {
	w := serve(t, httptest.NewServer)
	w.answer(manifest("a", "i:1"))
	r := start(t, w.URL)
	r.want(r.next(), 0, "a-node i:1")
	w.Close()
	first := r.poll()
	r.wantFailed(first, "connection refused")
	if again := r.poll(); again.Errors[0].Message != first.Errors[0].Message {
		t.Errorf("the same failure is %q and then %q", first.Errors[0].Message, again.Errors[0].Message)
	}
}

func TestAServerWhoseCertificateIsNotTrustedIsNotAsked(t *testing.T) {
	w := serve(t, httptest.NewTLSServer)
	w.answer(manifest("a", "i:1"))
	r := start(t, w.URL, header("Authorization", "Bearer hunter2"))
	r.wantFailed(r.next(), "certificate signed by unknown authority")
	if n := len(w.requests()); n > 0 {
		t.Errorf("%d requests came through", n)
	}
	trusting := start(t, w.URL, transport(w.Client()))
	trusting.want(trusting.next(), 0, "a-node i:1")

	// The certificate is that of 127.0.0.1 and of example.com.
	_, port, _ := strings.Cut(strings.TrimPrefix(w.URL, "https://"), ":")
	r = start(t, "https://localhost:"+port, transport(w.Client()))
	r.wantFailed(r.next(), "not localhost")

	late := w.Client().Transport.(*http.Transport).Clone()
	late.TLSClientConfig.Time = func() time.Time { return time.Now().AddDate(200, 0, 0) }
	r = start(t, w.URL, transport(&http.Client{Transport: late}))
	r.wantFailed(r.next(), "its certificate is valid only from")
}

// Over HTTP/2 the library's errors contain the number of the request.
func TestAFailureOfHTTP2IsTheSameEachTime(t *testing.T) {
	w := serve(t, func(handler http.Handler) *httptest.Server {
		server := httptest.NewUnstartedServer(handler)
		server.EnableHTTP2 = true
		server.StartTLS()
		return server
	})
	keeps(
		t,
		w,
		func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"INTERNAL_ERROR",
		transport(w.Client()),
	)
	if got := w.requests()[0].Proto; got != "HTTP/2.0" {
		t.Errorf("asked by %s, want HTTP/2.0", got)
	}
}

func TestAServerThatSpeaksNoTLSAndOneThatSpeaksOnlyTLS(t *testing.T) {
	plain, secure := serve(t, httptest.NewServer), serve(t, httptest.NewTLSServer)
	r := start(t, "https"+strings.TrimPrefix(plain.URL, "http"))
	r.wantFailed(r.next(), "does not look like a TLS handshake")
	r = start(t, "http"+strings.TrimPrefix(secure.URL, "https"))
	r.wantFailed(r.next(), "status 400")
}

func TestHeadersAndThePasswordAreSent(t *testing.T) {
	w := serve(t, httptest.NewServer)
	w.answer(manifest("a", "i:1"))
	r := start(t, strings.Replace(w.URL, "http://", "http://node:secret@", 1)+"/pods?of=node",
		header("x-token", "a", "b"), header("Host", "pods.example"))
	r.next()
	got := w.requests()[0]
	user, password, _ := got.BasicAuth()
	if user != "node" || password != "secret" || fmt.Sprint(got.Header["X-Token"]) != "[a b]" ||
		got.Host != "pods.example" ||
		got.URL.RawQuery != "of=node" {
		t.Errorf("asked %s %s with %v", got.Host, got.URL, got.Header)
	}
}

// Headers are sent to the same server only, and not even to it after a redirect through another one.
func TestRedirectsAreFollowedWithoutTheSecretsOfTheFirstServer(t *testing.T) {
	const name = "X-Token"
	first, other := serve(t, httptest.NewServer), serve(t, httptest.NewServer)
	first.does(func(out http.ResponseWriter, request *http.Request) {
		switch request.URL.Path {
		case "/start":
			http.Redirect(out, request, "/same", http.StatusPermanentRedirect)
		case "/same":
			http.Redirect(out, request, other.URL+"/other", http.StatusSeeOther)
		default:
			_, _ = out.Write([]byte(manifest("a", "i:1")))
		}
	})
	other.does(func(out http.ResponseWriter, request *http.Request) {
		http.Redirect(out, request, first.URL+"/back", http.StatusTemporaryRedirect)
	})
	r := start(t, strings.Replace(first.URL, "http://", "http://node:secret@", 1)+"/start", header(name, "hunter2"))
	r.want(r.next(), 0, "a-node i:1")
	sent := map[string]bool{}
	for _, request := range append(first.requests(), other.requests()...) {
		_, _, user := request.BasicAuth()
		if got := request.Header.Get(name) != ""; got != user {
			t.Errorf("%s: header %v, password %v", request.URL.Path, got, user)
		}
		if request.Header.Get("Referer") != "" {
			t.Errorf("%s is told where it comes from", request.URL.Path)
		}
		sent[request.URL.Path] = user
	}
	if fmt.Sprint(sent) != "map[/back:false /other:false /same:true /start:true]" {
		t.Errorf("secrets were sent %v, want %q", sent, "map[/back:false /other:false /same:true /start:true]")
	}
}

// A redirect from https to http of the same host and port takes no secrets along.
func TestADowngradeTakesNoSecretsAlong(t *testing.T) {
	for _, c := range []struct {
		from, to string
		same     bool
	}{
		{"https://host/a", "https://HOST/b", true}, {"http://host/a", "https://host/b", true}, {"https://host/a", "http://host/b", false},
		{"http://host/a", "http://host:81/b", false}, {"http://host/a", "http://sub.host/b", false},
	} {
		if got := isSame(parsed(t, c.from), parsed(t, c.to)); got != c.same {
			t.Errorf("from %s to %s: %v, want %v", c.from, c.to, got, c.same)
		}
	}
}

// Secrets appear nowhere, whatever a server does with those that it received.
func TestNoSecretShowsUpAnywhere(t *testing.T) {
	const user, password, token, key = "the-user", "the-password", "the-token", "the-key"
	w := serve(t, httptest.NewTLSServer)
	trusted := transport(
		&http.Client{
			Transport: &http.Transport{
				TLSClientConfig: &tls.Config{
					RootCAs:    w.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs,
					MinVersion: tls.VersionTLS12,
				},
			},
		},
	)
	at := strings.Replace(w.URL, "https://", "https://"+user+":"+password+"@", 1) + "/pods?key=" + key
	r := start(t, at, trusted, header("X-Token", "Bearer "+token))
	readings := []any{r.next()}
	for _, does := range []http.HandlerFunc{
		func(out http.ResponseWriter, request *http.Request) { fmt.Fprint(out, request.Header, request.URL) },
		func(out http.ResponseWriter, request *http.Request) {
			echo := strings.Join([]string{request.Header.Get("X-Token"), request.Header.Get("Authorization"), request.URL.RawQuery}, " ")
			fmt.Fprintf(out, "apiVersion: v1\nkind: %q\n", echo)
		},
		func(out http.ResponseWriter, request *http.Request) {
			out.Header().Set("Location", at+" "+request.Header.Get("X-Token"))
			out.WriteHeader(http.StatusFound)
		},
		func(out http.ResponseWriter, request *http.Request) {
			http.Error(out, fmt.Sprint(request.Header), http.StatusUnauthorized)
		},
		func(out http.ResponseWriter, request *http.Request) {
			conn, _, err := http.NewResponseController(out).Hijack()
			if err == nil {
				_, _ = fmt.Fprintf(conn, "%s %s\r\n", request.Header.Get("X-Token"), request.URL)
				_ = conn.Close()
			}
		},
		func(out http.ResponseWriter, _ *http.Request) { fmt.Fprint(out, manifest("a", "i:1")) },
	} {
		w.does(does)
		readings = append(readings, r.poll(), r.poll(), r.poll())
	}
	w.Close()
	readings = append(readings, r.poll(), r.poll())
	spans, err := json.Marshal(r.spans.GetSpans())
	if err != nil {
		t.Fatal(err)
	}
	everything := fmt.Sprintf("%+v\n%s\n%s", readings, r.log.String(), spans)
	for _, secret := range []string{user, password, token, key} {
		if i := strings.Index(everything, secret); i >= 0 {
			t.Errorf("%s shows up: …%s…", secret, everything[max(0, i-200):min(len(everything), i+100)])
		}
	}
	if !strings.Contains(everything, w.URL+"/pods?…") {
		t.Error("the address shows up nowhere")
	}
}
