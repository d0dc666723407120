package main

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"testing"
)

func TestThePageIsFromAFileAndForThePasswordOfAnother(t *testing.T) {
	dir := t.TempDir()
	text, password := filepath.Join(dir, "text"), filepath.Join(dir, "password")
	for file, content := range map[string]string{text: "first", password: "open\n"} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	_, out := hello(t, "serve", "-addr", "127.0.0.1:0", "-page", text, "-password", password)
	url := "http://" + addresses(t, line(t, out))[""] + "/"
	ask := func(given string) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		req.SetBasicAuth("anybody", given)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		if err != nil || resp.Body.Close() != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(body)
	}
	if code, body := ask("wrong"); code != http.StatusUnauthorized || body == "first" {
		t.Errorf("with a wrong password: %d %q", code, body)
	}
	if code, body := ask("open"); code != http.StatusOK || body != "first" {
		t.Errorf("with the password: %d %q, want %d and %q", code, body, http.StatusOK, "first")
	}
	if err := os.WriteFile(text, []byte("second"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(password, []byte("other"), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, body := ask("other"); code != http.StatusOK || body != "second" {
		t.Errorf("after a change of both: %d %q", code, body)
	}
	if code, _ := get(t, url+"live"); code != http.StatusOK {
		t.Errorf("a check needs a password: %d, want %d", code, http.StatusOK)
	}
	if err := os.Remove(password); err != nil {
		t.Fatal(err)
	}
	if code, _ := ask(""); code != http.StatusInternalServerError {
		t.Errorf("without the file of the password: %d", code)
	}
}
