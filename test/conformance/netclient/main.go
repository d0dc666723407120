// Command netclient acts as curl, nc or nmeter, depending on the name of its file, with the features that upstream's
// specs use in their containers. Debian's busybox lacks these tools or features.
//
//	curl -g -q -s --max-time 15 --connect-timeout 1 'http://10.0.0.1:8080/hostName'
//	echo hostName | nc -w 1 -u 10.0.0.1 8081
//	nmeter -d0 '%3t' | head -n1
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
)

const (
	// cannotConnect is curl's exit code when a connection fails. Specs examine it.
	cannotConnect = 7
	// misused is the exit code after an unknown argument.
	misused = 2
	// datagram is larger than the answer of any server of the specs.
	datagram = 64 << 10
)

func main() {
	command := curl
	switch filepath.Base(os.Args[0]) {
	case "nc":
		command = nc
	case "nmeter":
		command = nmeter
	}
	code, err := command(os.Args[1:], os.Stdin, os.Stdout)
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", filepath.Base(os.Args[0]), err)
	}
	os.Exit(code)
}

// curl gets one URL and prints the answer.
func curl(args []string, _ io.Reader, stdout io.Writer) (int, error) {
	flags := flag.NewFlagSet("curl", flag.ContinueOnError)
	// netclient never expands globs, reads a configuration or shows progress
	for _, quiet := range []string{"g", "q", "s"} {
		flags.Bool(quiet, false, "has no effect")
	}
	headers := flags.Bool("i", false, "print the status and the headers, too")
	output := flags.String("o", "", "file for the body")
	format := flags.String("w", "", "text to print at the end; %{http_code} is the status")
	all := flags.Float64("max-time", 0, "time limit in seconds")
	connect := flags.Float64("connect-timeout", 0, "time limit for the connection, in seconds")
	urls, err := parse(flags, args)
	if err == nil && len(urls) != 1 {
		err = fmt.Errorf("want one URL, got %q", urls)
	}
	if err != nil {
		return misused, err
	}
	dialer := net.Dialer{Timeout: seconds(*connect)}
	client := http.Client{Timeout: seconds(*all), Transport: &http.Transport{DialContext: dialer.DialContext}}
	if !strings.Contains(urls[0], "://") {
		urls[0] = "http://" + urls[0]
	}
	req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, urls[0], http.NoBody)
	if err != nil {
		return misused, err
	}
	resp, err := client.Do(req)
	if err != nil {
		if *format != "" {
			fmt.Fprint(stdout, strings.ReplaceAll(*format, "%{http_code}", "000"))
		}
		return cannotConnect, err
	}
	defer resp.Body.Close() //nolint:errcheck // the body was only read
	var body io.Writer = stdout
	if *output != "" {
		file, err := os.Create(*output)
		if err != nil {
			return 1, err
		}
		defer file.Close() //nolint:errcheck // what is in it is nobody's
		body = file
	}
	if *headers {
		fmt.Fprintf(body, "%s %s\r\n", resp.Proto, resp.Status)
		err = errors.Join(resp.Header.Write(body), line(body))
	}
	_, copyErr := io.Copy(body, resp.Body)
	if err := errors.Join(err, copyErr); err != nil {
		return 1, err
	}
	fmt.Fprint(stdout, strings.ReplaceAll(*format, "%{http_code}", fmt.Sprint(resp.StatusCode)))
	return 0, nil
}

func line(w io.Writer) error {
	_, err := io.WriteString(w, "\r\n")
	return err
}

// nc sends its standard input and prints the answer until the wait is over or the other end closes the connection.
func nc(args []string, stdin io.Reader, stdout io.Writer) (int, error) {
	flags := flag.NewFlagSet("nc", flag.ContinueOnError)
	udp := flags.Bool("u", false, "UDP")
	wait := flags.Float64("w", 0, "seconds to wait for a connection and for an answer")
	rest, err := parse(flags, args)
	if err == nil && len(rest) != 2 {
		err = fmt.Errorf("want a host and a port, got %q", rest)
	}
	if err != nil {
		return misused, err
	}
	network := "tcp"
	if *udp {
		network = "udp"
	}
	dialer := net.Dialer{Timeout: seconds(*wait)}
	conn, err := dialer.DialContext(context.Background(), network, net.JoinHostPort(rest[0], rest[1]))
	if err != nil {
		return 1, err
	}
	defer conn.Close() //nolint:errcheck // nothing is left to send
	if _, err := io.Copy(conn, stdin); err != nil {
		return 1, err
	}
	buf := make([]byte, datagram)
	for {
		if *wait > 0 {
			if err := conn.SetReadDeadline(time.Now().Add(seconds(*wait))); err != nil {
				return 1, err
			}
		}
		n, err := conn.Read(buf)
		if _, err := stdout.Write(buf[:n]); err != nil {
			return 1, err
		}
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, os.ErrDeadlineExceeded):
			return 0, nil
		case err != nil:
			return 1, err
		}
	}
}

// nmeter prints the time of the day once, with milliseconds. The specs use nothing else of it.
func nmeter(args []string, _ io.Reader, stdout io.Writer) (int, error) {
	if len(args) != 2 || args[0] != "-d0" || args[1] != "%3t" {
		return misused, fmt.Errorf("want the arguments -d0 %%3t, got %q", args)
	}
	if _, err := fmt.Fprintln(stdout, time.Now().UTC().Format("15:04:05.000")); err != nil {
		return 1, err
	}
	return 0, nil
}

// parse parses flags before and behind the other arguments, as curl and nc do, and returns the other arguments.
func parse(flags *flag.FlagSet, args []string) ([]string, error) {
	var rest []string
	for {
		if err := flags.Parse(args); err != nil {
			return nil, err
		}
		if flags.NArg() == 0 {
			return rest, nil
		}
		rest = append(rest, flags.Arg(0))
		args = flags.Args()[1:]
	}
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
