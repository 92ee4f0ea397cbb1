"""The admin's interface at `/admin/*`: what it shows, what it does, and its audit."""
