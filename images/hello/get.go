package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"
)

// getURL requests a URL, whose name is resolved with the container's resolv.conf, and prints the answer. The exit code
// is 0 for a status of 200.
func getURL(ctx context.Context, patience time.Duration, args []string, stdout, stderr io.Writer) int {
	if len(args) != 1 {
		fmt.Fprintln(stderr, "hello get: name one URL")
		return usageCode
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	status, err := fetch(ctx, args[0], stdout)
	if err != nil {
		fmt.Fprintf(stderr, "hello get: %v\n", err)
		return 1
	}
	if status != http.StatusOK {
		fmt.Fprintf(stderr, "hello get: %s: %s\n", args[0], http.StatusText(status))
		return 1
	}
	return 0
}

func fetch(ctx context.Context, url string, body io.Writer) (int, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err
	}
	defer func() { _ = response.Body.Close() }() // it has been read
	_, err = io.Copy(body, response.Body)
	return response.StatusCode, err
}
