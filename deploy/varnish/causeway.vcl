vcl 4.1;

# Varnish in front of Causeway, as a shared cache. For Varnish 6.6 or later, as /etc/varnish/default.vcl. Varnish ends no
# TLS: something in front of it does (Hitch, HAProxy, a CDN). deploy/README.md says what Causeway has to be told.
#
# What is taken down at Causeway leaves this cache by BAN. With the module xkey (package varnish-modules) it leaves by PURGE,
# which costs less in a large cache: take "#xkey " away from the lines below that begin with it.
#
# What is passed through waits in the storage "Transient" for clients that read slowly, and that has no bound unless it is given one:
# start Varnish with "-s Transient=malloc,512m", and from 7.3 on with "-p transit_buffer=1m", which makes it wait for them instead.

import std;
#xkey import xkey;

backend causeway {
    .host = "127.0.0.1";
    .port = "8080";
    # Longer than http.stall_timeout_seconds and names.timeout_seconds together, so that people get Causeway's 504 and not
    # Varnish's: it says how far the search got.
    .first_byte_timeout = 90s;
    .between_bytes_timeout = 90s;
}

# Who may say that content is gone: Causeway alone, which is told of this cache by policy.caches = ["ban+http://127.0.0.1:6081"],
# or "xkey+http://127.0.0.1:6081". What ends TLS on this machine has to tell Varnish whose connection it is (the PROXY
# protocol), or every client has the address of this machine.
acl may_purge {
    "127.0.0.1";
    "::1";
}

sub vcl_recv {
    if (req.method == "BAN" || req.method == "PURGE") {
        if (client.ip !~ may_purge) {
            return (synth(403));
        }
        # A key is a CID or a name. Anything else would be an expression of its own.
        if (req.http.Surrogate-Key !~ "^[0-9A-Za-z._-]+$") {
            return (synth(400));
        }
        #xkey set req.http.X-Purged = xkey.purge(req.http.xkey);
        #xkey return (synth(200));
        # Of the object alone, so that Varnish works through its bans by itself, and forgets them. A space would end the pattern.
        if (std.ban("obj.http.Surrogate-Key ~ (^|\s)" + regsuball(req.http.Surrogate-Key, "\.", "\\.") + "(\s|$)")) {
            return (synth(200));
        }
        return (synth(500, std.ban_error()));
    }

    # All of these, for whatever is not set here is passed on as the client sent it, and Causeway believes this proxy. Varnish
    # adds the client's address to X-Forwarded-For by itself. If clients come without TLS, it is "http" here.
    set req.http.X-Forwarded-Host = req.http.Host;
    set req.http.X-Forwarded-Proto = "https";

    # Content is the same for every client. With a cookie, Varnish would not cache it.
    unset req.http.Cookie;

    # A request for what is here alone is Causeway's to answer: Varnish would drop that header, and Causeway search the network.
    if (req.http.Cache-Control ~ "(?i)only-if-cached") {
        return (pass);
    }

    # Ranges and HEAD are passed through, or Varnish would fetch whole files for them. A service worker's script is asked for under
    # an address that is fine without that header, but refused with it.
    if (req.http.Range || req.method == "HEAD" || req.http.Service-Worker) {
        return (pass);
    }
}

sub vcl_backend_response {
    # Causeway says how long everything holds (s-maxage, if http.shared_max_age_seconds is set). Nothing stale is sent while it is
    # asked again, for it may have been taken down; whether it still holds costs it next to nothing.
    set beresp.grace = 0s;

    # What would be kept for longer, because that setting was forgotten, is not kept at all. What is large, or of unknown length, as
    # archives are, would push everything else out of the cache.
    if ((beresp.ttl > 1000s && beresp.http.Cache-Control !~ "s-maxage=[0-9]")
        || std.integer(beresp.http.Content-Length, 1073741824) > 104857600) {
        set beresp.uncacheable = true;
        # For so long, requests for it do not wait for each other.
        set beresp.ttl = 120s;
    } else if (beresp.ttl > 0s && beresp.http.Cache-Control !~ "(?i)no-store|no-cache|private") {
        # For so long, an answer whose time is over is there to be asked about.
        set beresp.keep = 1d;
    }
    #xkey set beresp.http.xkey = beresp.http.Surrogate-Key;
}

sub vcl_deliver {
    if (obj.hits > 0) {
        set resp.http.X-Cache-Status = "HIT";
    } else {
        set resp.http.X-Cache-Status = "MISS";
    }
    # These are between Causeway and this cache. A CDN in front of it that is told by them needs them.
    unset resp.http.Surrogate-Key;
    unset resp.http.Cache-Tag;
    #xkey unset resp.http.xkey;
}
